//! The `top` screen on a terminal in memory.
//!
//! `TIDEGATE_UPDATE_SNAPSHOTS=1` writes the pictures in `tests/snapshots/top/` anew.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::stats::{DiskStats, LatencySummary, OpStats, Sample, StageLatency, ThreadStats};
use tidegate_api::thread::ThreadState;
use tidegate_api::units::Span;

use super::screen::{Act, Overlay, Pace, Screen, View};
use super::{batch, delay, draw};
use crate::output::Colour;

fn latency(mean_us: f64) -> LatencySummary {
    LatencySummary {
        count: 1000,
        mean_us,
        p50_us: mean_us * 0.8,
        p95_us: mean_us * 2.0,
        p99_us: mean_us * 5.0,
        p999_us: mean_us * 9.0,
        max_us: mean_us * 20.0,
    }
}

fn op(name: &str, iops: f64, mean_us: f64) -> OpStats {
    OpStats {
        op: name.to_owned(),
        ops_total: 123_456,
        bytes_total: 123_456 * 4096,
        errors_total: 0,
        sequential_ratio: 0.25,
        iops,
        bytes_per_s: iops * 4096.0,
        latency: StageLatency {
            queue: latency(mean_us * 0.1),
            filters: latency(mean_us * 0.02),
            datastore: latency(mean_us * 0.88),
            total: latency(mean_us),
        },
    }
}

fn disk(name: &str, reads: f64, writes: f64, mean_us: f64) -> DiskStats {
    DiskStats {
        name: name.parse().unwrap(),
        datastore: "local".parse().unwrap(),
        thread: 1,
        window_s: 1.0,
        measured: true,
        outstanding: 32,
        outstanding_mean: 30.5,
        all: op("all", reads + writes, mean_us),
        cache_hit_ratio: None,
        ops: vec![
            op("read", reads, mean_us),
            op("write", writes, mean_us * 1.5),
        ],
    }
}

fn sample() -> Sample {
    let thread = |thread, busy_ratio| ThreadStats {
        thread,
        state: ThreadState::Active,
        cpu: Some(thread + 2),
        disks: vec!["backup".parse().unwrap(), "db1".parse().unwrap()],
        window_s: 1.0,
        requests_total: 1_000_000,
        requests_per_s: 51_234.0,
        busy_ratio,
        polling_ratio: 0.2,
        sleeping_ratio: (0.8 - busy_ratio).max(0.0),
        run_delay_ratio: 0.01,
        queue_delay_p50_us: 4.0,
        queue_delay_p99_us: 38.0,
        turns_total: 4_000_000,
        wakeups_total: 1234,
    };
    Sample {
        at_ms: 1_795_000_000_000,
        disks: vec![
            disk("backup", 0.0, 120.0, 24_000.0),
            disk("db1", 44_000.0, 7_100.0, 85.0),
            disk("web1", 250.0, 12.0, 410.0),
        ],
        threads: vec![thread(0, 0.75), thread(1, 0.4)],
    }
}

fn screen() -> Screen {
    let mut screen = Screen::new(View::Disks, Duration::from_secs(1), Colour::Off);
    screen.take(sample());
    screen
}

fn press(screen: &mut Screen, key: KeyCode) -> Act {
    screen.key(KeyEvent::new(key, KeyModifiers::NONE))
}

fn type_keys(screen: &mut Screen, keys: &str) {
    for key in keys.chars() {
        press(screen, KeyCode::Char(key));
    }
}

/// The screen as text.
fn picture(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer.cell((x, y)).unwrap().symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

fn matches_its_snapshot(name: &str, picture: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/top");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("TIDEGATE_UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, picture).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        picture, before,
        "{name} looks different; TIDEGATE_UPDATE_SNAPSHOTS=1 accepts that"
    );
}

fn names(screen: &Screen) -> Vec<&str> {
    screen
        .disks()
        .into_iter()
        .map(|disk| disk.name.as_str())
        .collect()
}

#[test]
fn disks_threads_stages_and_help_look_as_they_did() {
    let mut screen = screen();
    matches_its_snapshot("disks", &picture(&screen, 132, 10));
    matches_its_snapshot("narrow", &picture(&screen, 80, 10));
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Enter);
    matches_its_snapshot("stages", &picture(&screen, 100, 24));
    press(&mut screen, KeyCode::Char('h'));
    matches_its_snapshot("help", &picture(&screen, 100, 30));
    press(&mut screen, KeyCode::Char('h'));
    press(&mut screen, KeyCode::Char('t'));
    matches_its_snapshot("threads", &picture(&screen, 132, 8));
}

#[test]
fn nothing_is_shown_before_the_first_sample_and_that_is_said() {
    let screen = Screen::new(View::Disks, Duration::from_secs(1), Colour::Off);
    let picture = picture(&screen, 80, 6);
    assert!(
        picture.contains("waiting for the first sample"),
        "{picture}"
    );
    assert!(picture.contains("all disks: 0 IOPS"), "{picture}");
}

#[test]
fn the_smallest_terminal_does_no_harm() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Enter);
    press(&mut screen, KeyCode::Char('h'));
    for (width, height) in [(1, 1), (3, 2), (20, 5)] {
        picture(&screen, width, height);
    }
}

#[test]
fn rows_are_sorted_by_any_column_either_way() {
    let mut screen = screen();
    assert_eq!(names(&screen), ["backup", "db1", "web1"]);
    screen.sort_by("gavg").unwrap();
    assert_eq!(names(&screen), ["backup", "web1", "db1"]);
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(names(&screen), ["db1", "web1", "backup"]);
    screen.sort_by("R/S").unwrap();
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(names(&screen), ["db1", "web1", "backup"]);
    assert!(screen.sort_by("colour").is_err());
}

#[test]
fn o_goes_through_the_columns_and_comes_round() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('O'));
    let last = screen.disk_sort.column;
    press(&mut screen, KeyCode::Char('o'));
    assert_eq!(screen.disk_sort.column, 0);
    assert_eq!(last, super::columns::DISKS.len() - 1);
}

#[test]
fn the_selected_disk_stays_selected_until_it_is_gone() {
    let mut screen = screen();
    press(&mut screen, KeyCode::End);
    screen.sort_by("GAVG").unwrap();
    assert_eq!(screen.selected().unwrap().name.as_str(), "web1");
    let mut without = sample();
    without.disks.pop();
    screen.take(without);
    assert_eq!(
        screen.selected().unwrap().name.as_str(),
        "backup",
        "the first row then"
    );
}

#[test]
fn a_new_interval_is_typed_checked_and_taken() {
    let mut screen = screen();
    type_keys(&mut screen, "s5min");
    assert_eq!(press(&mut screen, KeyCode::Enter), Act::Go);
    assert!(picture(&screen, 100, 8).contains("from 100ms to 60s"));
    for _ in 0..4 {
        press(&mut screen, KeyCode::Backspace);
    }
    type_keys(&mut screen, "2");
    assert_eq!(press(&mut screen, KeyCode::Enter), Act::Restart);
    assert_eq!(
        (screen.interval(), screen.overlay.clone()),
        (Duration::from_secs(2), None)
    );
    type_keys(&mut screen, "s9");
    assert_eq!(press(&mut screen, KeyCode::Esc), Act::Go);
    assert_eq!(screen.interval(), Duration::from_secs(2));
    assert_ne!(screen.overlay, Some(Overlay::Help));
}

#[test]
fn a_pause_keeps_what_is_in_view() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Char('p'));
    screen.take(Sample::default());
    assert_eq!((screen.pace, names(&screen).len()), (Pace::Paused, 3));
    press(&mut screen, KeyCode::Char('p'));
    screen.take(Sample::default());
    assert_eq!(names(&screen).len(), 0);
}

#[test]
fn a_daemon_that_has_gone_is_told_until_it_is_back() {
    let mut screen = screen();
    screen.lose(&Problem::new(
        ProblemCode::Internal,
        "cannot reach the daemon at /x",
    ));
    let lost = picture(&screen, 100, 8);
    assert!(
        lost.contains("cannot reach the daemon at /x; trying again") && lost.contains("db1"),
        "{lost}"
    );
    screen.take(sample());
    assert!(!picture(&screen, 100, 8).contains("trying again"));
}

#[test]
fn q_and_control_c_end_it() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Act::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    type_keys(&mut screen, "s");
    assert_eq!(screen.key(interrupt), Act::Quit);
}

#[test]
fn csv_has_a_head_and_a_row_for_each_disk_with_plain_numbers() {
    let head = batch::head(View::Disks);
    assert!(
        head.starts_with("at_ms,disk,datastore,thread,reads_per_s,"),
        "{head}"
    );
    let rows = batch::rows(View::Disks, &sample());
    let lines: Vec<_> = rows.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[1].starts_with("1795000000000,db1,local,1,44000,7100,180224000,29081600,32,85,"),
        "{}",
        lines[1]
    );
    for line in lines {
        assert_eq!(line.split(',').count(), head.trim_end().split(',').count());
    }
    assert_eq!(batch::rows(View::Threads, &sample()).lines().count(), 2);
}

#[test]
fn a_delay_may_be_bare_seconds() {
    assert_eq!(delay("2"), Ok(Span(2_000_000_000)));
    assert_eq!(delay("0.5"), Ok(Span(500_000_000)));
    assert_eq!(delay("500ms"), Ok(Span(500_000_000)));
    assert!(delay("0").is_err());
    assert!(delay("").is_err());
}
