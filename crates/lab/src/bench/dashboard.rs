//! What a dashboard that is watched costs the data path: IOPS of a daemon with hundreds of disks, with and without.
//!
//! The daemon has all its threads on one core and its guests on the other, so that whatever it does for the dashboard it
//! takes from the I/O thread: the worst case. Who watches does what a browser with the host's page open does (the stream,
//! and the daemon's status every ten seconds), and what Prometheus does (`/metrics` every five). One daemon serves all
//! trials of a load: making hundreds of disks anew for each would take longer than the trials.
//!
//! # Always true
//! - A trial in which nothing came by the stream, or the metrics were not told, is an error: it would cost nothing.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use super::{Bench, Contestant, measure};
use crate::report::{Figures, Report, Rule};
use crate::server::{Launch, Server};
use crate::statistics;

const SCENARIO: &str = "dashboard";
const ALONE: &str = "nobody watches";
const WATCHED: &str = "a dashboard and Prometheus watch";
/// Disks that the daemon has attached.
const DISKS: usize = 256;
/// How many of them are used, and how deep: some, and all.
const LOADS: [(usize, u16); 2] = [(16, 8), (DISKS, 1)];
/// The part of its IOPS that the data path keeps.
const KEPT: f64 = 0.99;
/// Windows so many times as long as the bench's: what happens once a second, and every five, is to be in each of them as
/// often as in any other.
const LONGER: u32 = 5;
/// A difference of one percent needs more rounds than factors do.
const ROUNDS: usize = 2;
/// How often the metrics are asked for, and the daemon's status.
const SCRAPES: Duration = Duration::from_secs(5);
const ASKS: Duration = Duration::from_secs(10);
/// How often it is asked whether guests have gone: it can only be asked.
const LOOK: Duration = Duration::from_millis(20);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// IOPS with and without somebody who watches, in turns.
///
/// # Errors
/// A trial fails.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let longer = Bench {
        options: bench.options.clone(),
        scratch: tempfile::tempdir().context("cannot create a scratch directory")?,
        span: bench.span * LONGER,
        ..*bench
    };
    for (used, depth) in LOADS {
        let case = format!("{used} of {DISKS} disks, QD {depth} each");
        let mut ratio = None;
        if bench.has_tidegate() {
            contest(&longer, report, &case, used, depth)?;
            let iops = |figures: &Figures| figures.iops;
            ratio = report.ratio(SCENARIO, &case, WATCHED, ALONE, iops);
        }
        let claim = format!("{SCENARIO}, {case}: watched: IOPS by nobody's");
        report.judge(SCENARIO, &case, claim, Rule::AtLeast(KEPT), ratio);
    }
    Ok(())
}

fn contest(bench: &Bench, report: &mut Report, case: &str, used: usize, depth: u16) -> Result<()> {
    let stage = Stage::new(bench)?;
    let sockets = &stage.sockets[..used];
    let others = RefCell::new([Vec::new(), Vec::new()]);
    let heard = RefCell::new(Vec::new());
    let contestants = [
        Contestant::new(ALONE, |bench: &Bench| {
            let (figures, spent) = stage.trial(bench, sockets, depth)?;
            others.borrow_mut()[0].push(spent);
            Ok(figures)
        }),
        Contestant::new(WATCHED, |bench: &Bench| {
            let watcher = Watcher::start(&stage.dashboard)?;
            let (figures, spent) = stage.trial(bench, sockets, depth)?;
            others.borrow_mut()[1].push(spent);
            heard.borrow_mut().push(watcher.end()?);
            Ok(figures)
        }),
    ];
    bench.compete_closely(report, SCENARIO, case, &contestants, ROUNDS)?;
    drop(contestants);
    let spent = others.into_inner().map(|spent| middle(&spent));
    let heard = heard.into_inner();
    report.notes.push(format!(
        "{SCENARIO}, {case}: the daemon's threads but its I/O thread take {:.2} ms of CPU a second \
         while nobody watches, {:.2} ms watched; the stream brings {:.1} kB a second",
        spent[0],
        spent[1],
        middle(&heard) / 1e3,
    ));
    stage.server.stop()
}

fn middle(values: &[f64]) -> f64 {
    statistics::spread(values).map_or(0.0, |spread| spread.median)
}

/// A daemon with its disks.
struct Stage {
    server: Server,
    /// Each disk's, for guests.
    sockets: Vec<PathBuf>,
    /// Host and port of its dashboard.
    dashboard: String,
}

impl Stage {
    /// Starts a daemon with one I/O thread, and attaches its disks, which are empty.
    fn new(bench: &Bench) -> Result<Stage> {
        raise_limit()?;
        let root = bench.path("root");
        // That of the load before.
        let _absent = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root)
            .with_context(|| format!("cannot create {}", root.display()))?;
        let config = root.join("tidegate.toml");
        let text = "version = 1\n[io]\nthreads = 1\n[dashboard]\nlisten = \"127.0.0.1:0\"\n";
        std::fs::write(&config, text)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let launch = Launch {
            name: "tidegate".into(),
            program: bench.options.tidegate.clone(),
            arguments: vec!["--root".into(), (&root).into(), "serve".into()],
            sockets: Vec::new(),
            cpu: Some(bench.options.server_cpu),
        };
        let server = Server::start(&launch, bench.scratch.path())?;
        let order = |words: &[&str]| order(&bench.options.tidegate, &root, words);
        order(&["status", "--wait", "20s"])?;
        order(&["datastore", "add", "void", "--kind", "null"])?;
        for number in 0..DISKS {
            let name = format!("bench{number}");
            let create = ["disk", "create", &name, "--datastore", "void"];
            order(&[&create[..], &["--size", "1G", "--attach"]].concat())?;
        }
        let listed = json(&order(&["disk", "list", "-o", "json"])?)?;
        let disks = listed["disks"].as_array().context("a list of disks")?;
        let on_void = disks.iter().filter(|disk| disk["datastore"] == "void");
        let sockets = on_void.map(|disk| {
            let socket = disk["vhost_user_socket"].as_str();
            socket.map(PathBuf::from).context("a disk has a socket")
        });
        let sockets = sockets.collect::<Result<Vec<_>>>()?;
        if sockets.len() != DISKS {
            bail!("{} of {DISKS} disks can be reached", sockets.len());
        }
        let status = json(&order(&["status", "-o", "json"])?)?;
        let dashboard = status["dashboard"].as_str().context("it has a dashboard")?;
        let dashboard = dashboard
            .trim_start_matches("http://")
            .trim_end_matches('/');
        Ok(Stage {
            server,
            sockets,
            dashboard: dashboard.to_owned(),
        })
    }

    /// Waits until the guests of the trial before have gone: a disk serves one at a time.
    fn wait_until_it_is_left_alone(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = json(&whole(&self.dashboard, "/v1/status")?)?;
            match status["clients"].as_u64() {
                Some(0) => return Ok(()),
                Some(left) if Instant::now() > deadline => {
                    bail!("{left} guests of the trial before are still there")
                }
                Some(_) => std::thread::sleep(LOOK),
                None => bail!("the daemon does not tell who is connected"),
            }
        }
    }

    /// A trial, and the CPU that its threads took beside the I/O thread: milliseconds a second.
    fn trial(&self, bench: &Bench, sockets: &[PathBuf], depth: u16) -> Result<(Figures, f64)> {
        self.wait_until_it_is_left_alone()?;
        let mut watch = measure::Watch::new(&self.server);
        let mut spent = Vec::new();
        let tallies = measure::drive(
            sockets,
            &measure::Ask::random_reads(depth),
            crate::tally::Until::Time(bench.warm, bench.span),
            &mut |edge| {
                spent.push((Instant::now(), others_time(self.server.pid())));
                watch.look(edge);
            },
        )?;
        let figures = watch.figures(&tallies)?;
        let [(opened, before), (closed, after)] = <[_; 2]>::try_from(spent)
            .map_err(|_| anyhow::anyhow!("the window was not opened and closed"))?;
        let took = after?.saturating_sub(before?);
        let seconds = closed.duration_since(opened).as_secs_f64();
        Ok((figures, took.as_secs_f64() * 1e3 / seconds.max(1e-9)))
    }
}

/// Hundreds of disks with a guest each are more descriptors than a process may have as it comes; who is started by us may
/// have as many.
fn raise_limit() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read a limit")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("cannot raise the limit of open files")
}

fn order(program: &Path, root: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.arg("--root").arg(root).args(words).output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let says = String::from_utf8_lossy(&output.stderr);
        bail!("tidegate {}: {}", words.join(" "), says.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("the daemon's answer is no JSON")
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

/// What came by a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    /// Looks at the whole host.
    beats: u64,
    bytes: u64,
}

/// Somebody who watches, until told to end.
struct Watcher {
    begun: Instant,
    stream: TcpStream,
    over: Arc<AtomicBool>,
    reads: JoinHandle<Heard>,
    asks: JoinHandle<Result<()>>,
}

impl Watcher {
    /// Opens the page, and waits until it shows something.
    fn start(address: &str) -> Result<Watcher> {
        let request = "GET /dashboard/stream HTTP/1.1\r\nAccept: text/event-stream";
        let stream = ask(address, request)?;
        let mut lines = BufReader::new(stream.try_clone().context("cannot share a stream")?);
        let mut line = String::new();
        while line.trim_end() != "event: beat" {
            line.clear();
            if lines.read_line(&mut line).context("nothing is shown")? == 0 {
                bail!("the dashboard shows nothing");
            }
        }
        let over = Arc::new(AtomicBool::new(false));
        let reads = spawn("dashboard", move || {
            let mut heard = Heard::default();
            let mut line = Vec::new();
            // It ends when the stream is shut down, from either side.
            while let Ok(count @ 1..) = lines.read_until(b'\n', &mut line) {
                heard.bytes += count as u64;
                heard.beats += u64::from(line.starts_with(b"event: beat"));
                line.clear();
            }
            heard
        })?;
        let (own, to) = (Arc::clone(&over), address.to_owned());
        let asks = spawn("prometheus", move || keep_asking(&to, &own))?;
        Ok(Watcher {
            begun: Instant::now(),
            stream,
            over,
            reads,
            asks,
        })
    }

    /// Closes the page. How many bytes it got each second.
    fn end(self) -> Result<f64> {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.over.store(true, Ordering::Relaxed);
        self.asks.thread().unpark();
        // It may have been hung up on.
        let _gone = self.stream.shutdown(Shutdown::Both);
        let panicked = |_| anyhow::anyhow!("who watches has panicked");
        self.asks.join().map_err(panicked)??;
        let heard = self.reads.join().map_err(panicked)?;
        if heard.beats == 0 {
            bail!("nothing came by the dashboard's stream in {seconds:.1} s");
        }
        Ok(float(heard.bytes) / seconds.max(1e-9))
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(body).context("cannot start a thread")
}

/// Asks for metrics and status in their times, at once for the first time.
fn keep_asking(address: &str, over: &AtomicBool) -> Result<()> {
    let begun = Instant::now();
    let mut due = [
        ("/metrics", Duration::ZERO, SCRAPES),
        ("/v1/status", Duration::ZERO, ASKS),
    ];
    loop {
        for (path, at, every) in &mut due {
            if begun.elapsed() >= *at {
                *at += *every;
                whole(address, path)?;
            }
        }
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next = due.iter().map(|(_, at, _)| *at).min().unwrap_or(SCRAPES);
        std::thread::park_timeout(next.saturating_sub(begun.elapsed()));
    }
}

/// Asks for something, and reads all of the answer: what comes after its head.
fn whole(address: &str, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nConnection: close");
    let mut answer = String::new();
    ask(address, &request)?
        .read_to_string(&mut answer)
        .with_context(|| format!("GET {path} is not answered"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => bail!("GET {path}: {}", answer.lines().next().unwrap_or_default()),
    }
}

/// Sends a request whose head is written but for its host and its end.
fn ask(address: &str, request: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address);
    let mut stream = stream.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\r\nHost: {address}\r\n\r\n").as_bytes())?;
    Ok(stream)
}

#[expect(clippy::cast_precision_loss, reason = "bytes of some seconds")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn who_watches_reads_the_stream_and_asks_for_the_metrics() {
        let address = played(|request| match request.split(' ').nth(1) {
            Some("/dashboard/stream") => {
                "HTTP/1.1 200 OK\r\n\r\nevent: beat\ndata: {}\n\nevent: beat\ndata: {}\n\n"
            }
            Some("/metrics" | "/v1/status") => "HTTP/1.1 200 OK\r\n\r\nup 1\n",
            _ => "HTTP/1.1 404 Not Found\r\n\r\n",
        });
        let watcher = Watcher::start(&address).expect("it is shown something");
        assert!(watcher.end().expect("all was answered") > 0.0);
    }

    #[test]
    fn metrics_that_are_not_told_spoil_the_trial() {
        let address = played(|request| match request.split(' ').nth(1) {
            Some("/dashboard/stream") => "HTTP/1.1 200 OK\r\n\r\nevent: beat\ndata: {}\n\n",
            _ => "HTTP/1.1 403 Forbidden\r\n\r\n",
        });
        let watcher = Watcher::start(&address).expect("it is shown something");
        let error = watcher.end().expect_err("it is told nothing");
        assert!(error.to_string().contains("/metrics"), "{error:#}");
    }
}
