//! Plain text tables: columns for lists, `key: value` lines for one thing.
//!
//! No lines and no colours: they are read by eye, cut by awk and pasted into mails.

/// Rows under a head, each column as wide as its widest cell and two spaces apart. No rows: only the head.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        assert_eq!(row.len(), head.len(), "a cell for each column");
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, &width) in cells.zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// `key: value` lines with the values in line; a value of several lines stays under itself.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs
        .iter()
        .map(|(key, _)| key.len() + 1)
        .max()
        .unwrap_or(0);
    let indent = format!("\n{:width$} ", "");
    let line = |(key, value): &(&str, String)| {
        let value = value.trim_end().replace('\n', &indent);
        format!("{:width$} {value}\n", format!("{key}:"))
    };
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_without_spaces() {
        let rows = [
            vec!["web1".to_owned(), "10GiB".to_owned()],
            vec!["d".to_owned(), String::new()],
        ];
        assert_eq!(
            columns(&["NAME", "SIZE"], &rows),
            "NAME  SIZE\nweb1  10GiB\nd\n"
        );
        assert_eq!(columns(&["NAME", "SIZE"], &[]), "NAME  SIZE\n");
    }

    #[test]
    fn values_stand_in_line_also_when_they_have_several() {
        let text = pairs(&[
            ("name", "web1".to_owned()),
            ("problem", "one\ntwo".to_owned()),
        ]);
        assert_eq!(text, "name:    web1\nproblem: one\n         two\n");
    }
}
