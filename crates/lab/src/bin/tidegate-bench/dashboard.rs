//! The cost of an open dashboard: the part of its I/O that a daemon with hundreds of disks loses.
//!
//! The daemon has all its threads on one core and its guests on the other. So all that it does for the dashboard is taken
//! from the I/O thread: the worst case. Guests poll, so no CPU sleeps.
//!
//! An observer does what a browser with the host's page open does (the stream, and the daemon's status every ten seconds),
//! and what Prometheus does (`/metrics` every five). One daemon serves all blocks of a load: creating hundreds of disks for
//! each would take longer than the blocks. In a block the same guests request in slices of a second, alternately watched and
//! alone. A sample of the whole host comes in the middle of every watched one. The page is opened before each slice, and closed
//! again before those alone, so that CPUs have slept for as long.
//!
//! # Always true
//! - A watched slice without a sample of the whole host, or with a request that was not answered, is an error: it would cost
//!   nothing.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidegate_lab::host::{Host, http_get};
use tidegate_lab::interleaved::{BRIEF, Slice};
use tidegate_lab::machine::Noise;
use tidegate_lab::measure::{self, Figures, Meter, Slices};
use tidegate_lab::{attend, statistics};
use tidegate_testing::dips::Curve;
use tidegate_testing::load::Source;
use tidegate_testing::server::Server;
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::{GuestDriver, Wait};

use crate::bench::Bench;
use crate::compare::empty_series;
use crate::fleet;
use crate::report::{Figure, Report, Rule};

const SCENARIO: &str = "dashboard";
const ALONE: &str = "alone";
const WATCHED: &str = "a dashboard and Prometheus watch";
/// Disks that the daemon has attached.
const DISKS: usize = 256;
/// How many of them are used, and how deep: some, and all.
const LOADS: [(usize, u16); 2] = [(16, 8), (DISKS, 1)];
/// The part of its IOPS that the data path keeps.
const KEPT: f64 = 0.99;
/// How long a slice is: what a dashboard gets once a second comes once in each.
const SLICE: Slice = Slice {
    span: Duration::from_secs(1),
    ..BRIEF
};
/// Guests ask for so long before each: they have slept meanwhile.
const WARM: Duration = Duration::from_millis(200);
/// They begin so long after a dashboard was opened: what it gets next comes in the slice's middle.
const SINCE: Duration = Duration::from_millis(300);
/// Prometheus asks so long after that, and so does the page for the daemon's status: in the slice's first half.
const ASKS: Duration = Duration::from_millis(400);
/// In which of the slices that somebody watches: each fifth, and each tenth.
const SCRAPES: usize = 5;
const STATUS: usize = 10;
/// A look at the whole host has begun no longer before it comes: hundreds of disks take some milliseconds, and the daemon's
/// threads wait for the I/O thread's, which is never idle.
const LOOKS: Duration = Duration::from_millis(100);
/// What comes later than this after all has been read is nothing of it.
const SETTLED: Duration = Duration::from_millis(10);
/// A point of the curve each.
const STEP: Duration = Duration::from_millis(2);
/// So many slices each in a block.
const SLICES: u32 = 5;
/// A difference of one percent needs more blocks than factors do.
const BLOCKS: usize = 2;
/// How often it is asked whether guests have gone: it can only be asked.
const LOOK: Duration = Duration::from_millis(20);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// IOPS with and without somebody who watches, in slices.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (used, depth) in LOADS {
        let case = format!("{used} of {DISKS} disks, QD {depth} each");
        if bench.has_tidegate() {
            compare(bench, report, &case, used, depth)?;
        }
        let remaining = Figure {
            name: "IOPS that remain",
            of: |figures| 1.0 - figures.lost,
        };
        report.check(
            (SCENARIO, &case),
            WATCHED,
            ALONE,
            remaining,
            Rule::AtLeast(KEPT),
        );
    }
    Ok(())
}

fn compare(bench: &Bench, report: &mut Report, case: &str, used: usize, depth: u16) -> Result<()> {
    let daemon = Watched::new(bench)?;
    let mut others = [Vec::new(), Vec::new()];
    let names = [ALONE, WATCHED].into_iter();
    let series = empty_series(SCENARIO, case, names, BLOCKS * bench.blocks);
    bench.blocks(report, series, false, &mut |_, _| {
        bench.check_interrupted()?;
        let block = daemon.block(bench, used, depth);
        let besides = block.with_context(|| format!("{SCENARIO}, {case}"))?;
        let made = besides
            .into_iter()
            .zip(&mut others)
            .map(|(beside, others)| {
                others.push(beside.cpu.as_secs_f64() * 1e3 / f64::from(SLICES));
                beside.figures
            });
        Ok(made.collect())
    })?;
    let [alone, watched] =
        others.map(|each| statistics::spread(&each).map_or(0.0, |all| all.median));
    report.notes.push(format!(
        "{SCENARIO}, {case}: the daemon's threads but its I/O thread take {alone:.2} ms of CPU a second \
         alone, {watched:.2} ms while a dashboard and Prometheus watch"
    ));
    daemon.host.stop()
}

/// The slices of a block with or without somebody who watches.
#[derive(Default)]
struct Beside {
    slices: Slices,
    /// CPU time of the daemon's threads that are not its I/O thread.
    cpu: Duration,
    /// What guests were answered, and how much less that was than it would have been.
    answered: f64,
    lost: f64,
    figures: Figures,
}

impl Beside {
    /// Adds the dips of a slice's curve, in which something may have been done so long after its beginning.
    fn dips(&mut self, curve: &Curve, spans: &[(Duration, Duration)]) {
        let Some((open, _)) = curve.ends() else {
            return;
        };
        let spans = spans.iter().map(|(from, to)| (open + *from, open + *to));
        self.answered += curve.answered();
        self.lost += curve.lost(&spans.collect::<Vec<_>>());
    }

    /// Its figures, and the part of its requests that was lost.
    fn end(mut self, server: &Server, noise: Noise) -> Result<Self> {
        self.figures = Figures {
            lost: self.lost / (self.answered + self.lost).max(1.0),
            ..self.slices.figures(Some(server), noise)?
        };
        Ok(self)
    }
}

/// A daemon with its disks.
struct Watched {
    host: Host,
    /// Each disk's, for guests.
    sockets: Vec<PathBuf>,
    /// Host and port of its dashboard.
    dashboard: String,
    /// In how many slices somebody has watched.
    watched: Cell<usize>,
}

impl Watched {
    /// Starts a daemon with one I/O thread, and attaches its disks, which are empty.
    fn new(bench: &Bench) -> Result<Watched> {
        raise_limit()?;
        let (host, sockets) =
            fleet::start(bench, DISKS, "[dashboard]\nlisten = \"127.0.0.1:0\"\n")?;
        let address = host.dashboard().trim_start_matches("http://");
        Ok(Watched {
            dashboard: address.trim_end_matches('/').to_owned(),
            host,
            sockets,
            watched: Cell::new(0),
        })
    }

    /// Waits until the guests of the trial before have gone: a disk serves one at a time.
    fn wait_until_it_is_left_alone(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.host.get("/v1/status")?["clients"].as_u64() {
                Some(0) => return Ok(()),
                Some(left) if Instant::now() > deadline => {
                    bail!("{left} guests of the trial before are still there")
                }
                Some(_) => std::thread::sleep(LOOK),
                None => bail!("the daemon does not report how many clients it has"),
            }
        }
    }

    /// Somebody who watches for a slice, or opens the page before one and closes it.
    fn watcher(&self, whose: usize) -> Result<Watcher> {
        if whose == 0 {
            return Watcher::start(&self.dashboard, Vec::new());
        }
        let slice = self.watched.replace(self.watched.get() + 1);
        let asks = [("/metrics", SCRAPES), ("/v1/status", STATUS)].into_iter();
        let due = asks.filter(|(_, every)| slice.is_multiple_of(*every));
        Watcher::start(&self.dashboard, due.map(|(path, _)| path).collect())
    }

    /// Guests of so many disks in slices, alone and watched.
    fn block(&self, bench: &Bench, used: usize, depth: u16) -> Result<Vec<Beside>> {
        self.wait_until_it_is_left_alone()?;
        let ask = measure::Ask {
            wait: Wait::Poll,
            ..measure::Ask::random_reads(depth)
        };
        let (mut driver, mut sources) = measure::driver(&self.sockets[..used], &ask)?;
        driver.record_curve(STEP);
        let unmeasured = |driver: &mut GuestDriver, sources: &mut [Source], span| {
            let until = Until::Time(Duration::ZERO, span);
            driver.run(sources, until, &mut |_| ()).map(drop)
        };
        unmeasured(&mut driver, &mut sources, bench.warm)?;
        let mut besides = [Beside::default(), Beside::default()];
        let mut unwatched = Curve::default();
        let server = self.host.server();
        let (meter, had) = (Meter::start()?, server.cpu_time()?);
        for slice in 0..2 * SLICES {
            let whose = usize::from(slice % 2 == 1);
            let mut watcher = Some(self.watcher(whose)?);
            if whose == 0 {
                watcher.take().map(Watcher::end).transpose()?;
            }
            std::thread::sleep(SINCE);
            unmeasured(&mut driver, &mut sources, WARM)?;
            let before = others_time(server.pid())?;
            let until = Until::Time(SLICE.before, SLICE.span);
            let run = |probe: &mut dyn FnMut(_)| driver.run(&mut sources, until, probe);
            let (tallies, spent) = measure::window(server, run)?;
            besides[whose].slices.add(&tallies, spent);
            besides[whose].cpu += others_time(server.pid())?.saturating_sub(before);
            let Some(heard) = watcher.map(Watcher::end).transpose()? else {
                unwatched = driver.curve().clone();
                continue;
            };
            let spans = heard.spans(driver.curve());
            let spans = spans.context("nothing came by the dashboard's stream")?;
            for (beside, curve) in besides.iter_mut().zip([&unwatched, driver.curve()]) {
                beside.dips(curve, &spans);
            }
        }
        let (noise, _) = meter.end(server.cpu_time()?.saturating_sub(had))?;
        let ended = besides.into_iter().map(|beside| beside.end(server, noise));
        ended.collect()
    }
}

/// Hundreds of disks with a guest each are more descriptors than a process may have as it comes; who is started by us may
/// have as many.
fn raise_limit() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read a limit")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of open files")
}

/// CPU time of a daemon's threads that are not its I/O thread.
fn others_time(pid: u32) -> Result<Duration> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let mut sum = Duration::ZERO;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("{pid} is gone"))? {
        let task = task.context("cannot list threads")?.path();
        // A thread may end while one looks.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if name.trim() != "tidegate-io0" {
            let times = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let spent = times.split_whitespace().next();
            let spent = spent.and_then(|ns| ns.parse().ok()).unwrap_or(0);
            sum += Duration::from_nanos(spent);
        }
    }
    Ok(sum)
}

/// What came by a stream, and what else was asked.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// When a look at the whole host came.
    beats: Vec<Instant>,
    /// From when until when something was asked and answered.
    asked: Vec<(Instant, Instant)>,
}

impl Heard {
    /// When the daemon can have done something for it, after a slice's beginning; none if the whole host was not looked at in
    /// it.
    fn spans(&self, slice: &Curve) -> Option<Vec<(Duration, Duration)>> {
        let (open, close) = slice.ends()?;
        let looked = self.beats.iter().any(|at| (open..close).contains(at));
        let since = |at: Instant| at.saturating_duration_since(open);
        let looks = self.beats.iter();
        let looks = looks.map(|at| (since(*at).saturating_sub(LOOKS), *at));
        let asked = self.asked.iter().map(|(from, to)| (since(*from), *to));
        let all = looks.chain(asked);
        looked.then(|| all.map(|(from, to)| (from, since(to + SETTLED))).collect())
    }
}

/// An open dashboard and a scrape, until ended.
struct Watcher {
    stream: TcpStream,
    reads: Receiver<Heard>,
    asks: Receiver<Result<Vec<(Instant, Instant)>>>,
}

impl Watcher {
    /// Opens the page, and waits until it shows something. These are asked for in a while, too.
    fn start(address: &str, paths: Vec<&'static str>) -> Result<Watcher> {
        let mut stream = connect(address)?;
        let head = "GET /dashboard/stream HTTP/1.1\r\nAccept: text/event-stream\r\n";
        stream.write_all(format!("{head}Host: {address}\r\n\r\n").as_bytes())?;
        let mut lines = BufReader::new(stream.try_clone().context("cannot share a stream")?);
        wait_for_beat(&mut lines)?;
        let reads = attend::start("dashboard", move || {
            let mut heard = Heard::default();
            let mut line = Vec::new();
            // It ends when the stream is shut down, from either side.
            while let Ok(1..) = lines.read_until(b'\n', &mut line) {
                if line.starts_with(b"event: beat") {
                    heard.beats.push(Instant::now());
                }
                line.clear();
            }
            heard
        })?;
        let to = address.to_owned();
        let asks = attend::start("prometheus", move || {
            if !paths.is_empty() {
                std::thread::sleep(SINCE + ASKS);
            }
            let asked = paths.into_iter().map(|path| {
                let from = Instant::now();
                http_get(connect(&to)?, &to, path)?;
                Ok((from, Instant::now()))
            });
            asked.collect()
        })?;
        Ok(Watcher {
            stream,
            reads,
            asks,
        })
    }

    /// Closes the page. What it was shown since it was opened.
    fn end(self) -> Result<Heard> {
        // It may have been hung up on.
        let _gone = self.stream.shutdown(Shutdown::Both);
        let asked = self.asks.recv().context("a thread panicked")??;
        let heard = self.reads.recv().context("a thread panicked")?;
        Ok(Heard { asked, ..heard })
    }
}

/// Reads a stream until the host was looked at once more.
fn wait_for_beat(lines: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    while line.trim_end() != "event: beat" {
        line.clear();
        if lines.read_line(&mut line).context("nothing is shown")? == 0 {
            bail!("the dashboard shows nothing");
        }
    }
    Ok(())
}

fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address);
    let stream = stream.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// Answers every connection with what `answer` says of its request's first line, until the value is dropped.
    fn played(answer: fn(&str) -> &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one").to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let mut lines = BufReader::new(stream.try_clone().expect("one more"));
                let mut first = String::new();
                lines.read_line(&mut first).expect("a request");
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    lines.read_line(&mut line).expect("a request's head");
                }
                stream
                    .write_all(answer(&first).as_bytes())
                    .expect("it is listened to");
                if first.contains("stream") {
                    // Until the page is closed.
                    std::thread::spawn(move || lines.read(&mut [0; 1]));
                }
            }
        });
        address
    }

    #[test]
    fn an_observer_reads_the_stream_and_what_it_asks_for_must_be_answered() {
        let address = played(|request| match request.split(' ').nth(1) {
            Some("/dashboard/stream") => {
                "HTTP/1.1 200 OK\r\n\r\nevent: beat\ndata: {}\n\nevent: beat\n\nevent: beat\n\n"
            }
            Some("/metrics") => "HTTP/1.1 200 OK\r\n\r\nup 1\n",
            _ => "HTTP/1.1 403 Forbidden\r\n\r\n",
        });
        let ends = |paths| {
            let watcher = Watcher::start(&address, paths).expect("it is shown something");
            watcher.end()
        };
        let heard = ends(vec!["/metrics"]).expect("all was answered");
        assert_eq!((heard.beats.is_empty(), heard.asked.len()), (false, 1));
        let error = ends(vec!["/v1/status"]).expect_err("it is refused");
        assert!(error.to_string().contains("/v1/status"), "{error:#}");
        ends(Vec::new()).expect("nothing was asked");
    }

    #[test]
    fn dips_are_measured_from_before_a_sample_came_and_while_a_request_was_answered() {
        let open = Instant::now();
        let at = |ms| open + Duration::from_millis(ms);
        let mut slice = Curve::default();
        slice.add(open, 0);
        slice.add(at(1000), 1);
        let mut heard = Heard {
            beats: vec![at(500)],
            asked: vec![(at(200), at(230))],
        };
        let ms = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        assert_eq!(heard.spans(&slice), Some(vec![ms(400, 510), ms(200, 240)]));
        heard.beats = vec![at(1200)];
        assert_eq!(heard.spans(&slice), None);
    }
}
