//! The drawing of the `top` screen.
//!
//! Rows are text cut at the right edge: on a narrow terminal the last columns are missing, never squeezed.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use tidegate_api::stats::{DiskStats, Sample};

use super::columns::{Column, DISKS, Look, THREADS};
use super::screen::{Direction, Overlay, Pace, Screen, Sort, Stages, View};
use super::{coloured, columns};
use crate::{figures, stats, table};

/// Lines of the panel with a disk's stages: a title, a head, four stages for each of three rows.
const STAGES_HEIGHT: u16 = 14;

/// Paints the whole screen.
pub(super) fn draw(frame: &mut Frame, screen: &Screen) {
    let stages = match (screen.stages, screen.view) {
        (Stages::Shown, View::Disks) => STAGES_HEIGHT,
        _ => 0,
    };
    let parts = [
        Constraint::Length(2),
        Constraint::Min(2),
        Constraint::Length(stages),
        Constraint::Length(1),
    ];
    let [top, rows, panel, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(title(screen)), top);
    let selected = screen.selected().map(|disk| disk.name.clone());
    match screen.view {
        View::Disks => {
            let disks = screen.disks();
            let at = disks
                .iter()
                .position(|disk| Some(&disk.name) == selected.as_ref());
            draw_rows(frame, rows, screen, &DISKS, screen.disk_sort, &disks, at);
        }
        View::Threads => draw_rows(
            frame,
            rows,
            screen,
            &THREADS,
            screen.thread_sort,
            &screen.threads(),
            None,
        ),
    }
    if stages > 0 {
        frame.render_widget(Paragraph::new(stages_panel(screen)), panel);
    }
    frame.render_widget(Paragraph::new(foot_line(screen)), foot);
    if let Some(Overlay::Help) = &screen.overlay {
        draw_help(frame, screen);
    }
}

/// The two lines above the rows: what is seen, and all disks together.
fn title(screen: &Screen) -> Vec<Line<'static>> {
    let sample = screen.sample.clone().unwrap_or_default();
    let mut first = match &screen.sample {
        None => "tidegate top  waiting for the first sample".to_owned(),
        Some(sample) => format!(
            "tidegate top  {} UTC  disks: {}  I/O threads: {}  every {:?}",
            clock(sample.at_ms),
            sample.disks.len(),
            sample.threads.len(),
            screen.interval()
        ),
    };
    if screen.pace == Pace::Paused {
        first.push_str("  PAUSED");
    }
    let mut lines = vec![Line::styled(first, bold()), Line::raw(together(&sample))];
    if let Some(problem) = &screen.problem {
        let style = if coloured(screen.colour) {
            bold().fg(Color::Red)
        } else {
            bold()
        };
        lines[1] = Line::styled(format!("{problem}; trying again"), style);
    }
    lines
}

fn together(sample: &Sample) -> String {
    // Not `sum`, which makes -0 of nothing.
    let sum = |figure: &dyn Fn(&DiskStats) -> f64| {
        sample
            .disks
            .iter()
            .map(figure)
            .fold(0.0, |all, each| all + each)
    };
    let of = |op: &'static str| {
        move |disk: &DiskStats| stats::op(disk, op).map_or(0.0, |op| op.bytes_per_s)
    };
    format!(
        "all disks: {} IOPS  {} MB/s read  {} MB/s written  {} outstanding",
        figures::count(sum(&|disk| disk.all.iops)),
        figures::megabytes(sum(&of("read"))),
        figures::megabytes(sum(&of("write"))),
        figures::count(sum(&|disk| figures::to_f64(disk.outstanding))),
    )
}

/// The time of day in milliseconds since 1970, as `12:03:05`.
fn clock(at_ms: u64) -> String {
    let second = at_ms / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

fn draw_rows<T>(
    frame: &mut Frame,
    area: Rect,
    screen: &Screen,
    columns: &[Column<T>],
    sort: Sort,
    rows: &[&T],
    selected: Option<usize>,
) {
    let mut lines = vec![head(columns, sort)];
    let room = usize::from(area.height).saturating_sub(1);
    // The selected row is always in sight.
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (nth, row) in rows.iter().enumerate().skip(first).take(room) {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| pad(column, &column.shown(row)))
            .collect();
        let line = cells.join(" ");
        lines.push(match (Some(nth) == selected, coloured(screen.colour)) {
            (true, true) => Line::styled(line, Style::new().bg(Color::Blue).fg(Color::White)),
            (true, false) => Line::styled(line, Style::new().add_modifier(Modifier::REVERSED)),
            (false, _) => Line::raw(line),
        });
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// The heads; the one that rows are sorted by is marked.
fn head<T>(columns: &[Column<T>], sort: Sort) -> Line<'static> {
    let mark = match sort.direction {
        Direction::Usual => '▼',
        Direction::Reversed => '▲',
    };
    let mut spans = Vec::new();
    for (nth, column) in columns.iter().enumerate() {
        if nth > 0 {
            spans.push(Span::raw(" "));
        }
        if nth == sort.column {
            let text = pad(column, &format!("{}{mark}", column.head));
            spans.push(Span::styled(
                text,
                bold().add_modifier(Modifier::UNDERLINED),
            ));
        } else {
            spans.push(Span::styled(pad(column, column.head), bold()));
        }
    }
    Line::from(spans)
}

/// A cell at its column's width: names to the left, figures to the right, nothing longer.
fn pad<T>(column: &Column<T>, cell: &str) -> String {
    let cell: String = cell.chars().take(column.width).collect();
    let width = column.width;
    if column.look == Look::Text {
        format!("{cell:<width$}")
    } else {
        format!("{cell:>width$}")
    }
}

/// Where the selected disk's time goes.
fn stages_panel(screen: &Screen) -> Vec<Line<'static>> {
    let Some(disk) = screen.selected() else {
        return Vec::new();
    };
    let mut rows = Vec::new();
    let ops = [
        Some(&disk.all),
        stats::op(disk, "read"),
        stats::op(disk, "write"),
    ];
    for op in ops.into_iter().flatten() {
        for (stage, latency) in stats::stages(op) {
            let mut row = vec![op.op.clone(), stage.to_owned()];
            let times = [
                latency.mean_us,
                latency.p50_us,
                latency.p95_us,
                latency.p99_us,
                latency.p999_us,
                latency.max_us,
            ];
            row.extend(times.map(figures::micros));
            rows.push(row);
        }
    }
    let text = table::columns(
        &["OP", "STAGE", "MEAN", "P50", "P95", "P99", "P99.9", "MAX"],
        &rows,
    );
    let title = Line::styled(format!("── stages of disk {} ", disk.name), bold());
    std::iter::once(title)
        .chain(text.lines().map(|line| Line::raw(line.to_owned())))
        .collect()
}

fn foot_line(screen: &Screen) -> Line<'static> {
    match &screen.overlay {
        Some(Overlay::Interval { typed, wrong: None }) => Line::styled(
            format!("time between samples (such as 2, 500ms): {typed}_"),
            bold(),
        ),
        Some(Overlay::Interval {
            typed,
            wrong: Some(why),
        }) => Line::styled(format!("time between samples: {typed}_  {why}"), bold()),
        _ => Line::raw(
            "h help  d disks  t threads  o/O sort  r reverse  Enter stages  s interval  p pause  q quit",
        ),
    }
}

fn draw_help(frame: &mut Frame, screen: &Screen) {
    let mut lines = vec![
        Line::raw("o O or arrows   next, previous column to sort by"),
        Line::raw("r               reverse the order"),
        Line::raw("d t             disks, I/O threads"),
        Line::raw("up down Enter   choose a disk; show its latency by stage"),
        Line::raw("s               set the time between samples"),
        Line::raw("p or space      pause, continue"),
        Line::raw("q               quit"),
        Line::raw(""),
    ];
    match screen.view {
        View::Disks => {
            lines.extend(meanings(&columns::DISKS));
            lines.push(Line::raw(
                "GAVG = QAVG + FAVG + DAVG; esxtop's KAVG is QAVG + FAVG",
            ));
        }
        View::Threads => lines.extend(meanings(&columns::THREADS)),
    }
    let area = frame.area();
    let height = u16::try_from(lines.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let width = area.width.min(66);
    let at = Rect::new(
        (area.width - width) / 2,
        (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, at);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" any key closes this ")),
        at,
    );
}

fn meanings<T>(columns: &[Column<T>]) -> impl Iterator<Item = Line<'static>> {
    columns
        .iter()
        .map(|column| Line::raw(format!("{:<15} {}", column.head, column.meaning)))
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}
