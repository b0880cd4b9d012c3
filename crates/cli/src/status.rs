//! `tidegate status`: the daemon's state; it can wait until the daemon serves.

use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use tidegate_api::dense::DenseStatus;
use tidegate_api::events::IoThreadAction;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::status::{
    NbdListener, NbdSecurity, State, Status as Answer, ThreadPolicyStatus, TlsCertificate,
};
use tidegate_api::units::Span;

use crate::client::Client;
use crate::failure::{Failure, sentences};
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{figures, table};

/// How long between two looks while waiting: a person does not notice it, a CPU hardly.
const PAUSE: Duration = Duration::from_millis(50);

/// Show the daemon's state, or wait until it serves
///
/// The exit status is 3 if the daemon cannot be reached. With --wait it is 1 if the daemon does not serve in time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate status
  tidegate serve & tidegate status --wait 20s && tidegate disk list
  tidegate status -o json | jq -r .api_socket")]
pub(crate) struct Status {
    /// Wait until the daemon serves, at most for this time
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
}

impl Status {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let status = match self.wait {
            None => client.look(routes::STATUS, &[])?,
            Some(longest) => wait(&client, longest.to_duration())?,
        };
        session.console.show(&status)
    }
}

/// Looks until the daemon serves.
fn wait(client: &Client, longest: Duration) -> Result<Answer, Failure> {
    let began = Instant::now();
    loop {
        let failure = match client.look(routes::STATUS, &[]) {
            Ok(status) if status.state == State::Serving => return Ok(status),
            Ok(status) => Failure::Failed(not_yet(&status, longest)),
            Err(failure) => failure,
        };
        // What a daemon that goes on answers with a problem, waiting does not mend.
        let may_pass = match &failure {
            Failure::Unreachable(_) => true,
            Failure::Failed(problem) => {
                matches!(problem.code, ProblemCode::Busy | ProblemCode::Stopping)
            }
            Failure::Usage(_) | Failure::NobodyReads => false,
        };
        if !may_pass || began.elapsed() >= longest {
            return Err(failure);
        }
        std::thread::sleep(PAUSE);
    }
}

fn not_yet(status: &Answer, longest: Duration) -> Problem {
    let waited = figures::seconds(longest.as_secs());
    Problem::new(
        ProblemCode::Busy,
        format!("the daemon does not serve after {waited}"),
    )
    .because(format!("it is {}", state(status.state)))
    .remedy("wait longer, or see its log")
}

fn state(state: State) -> &'static str {
    match state {
        State::Starting => "starting",
        State::Serving => "serving",
        State::Stopping => "stopping",
    }
}

fn listener(listener: &NbdListener) -> String {
    let security = match listener.security {
        NbdSecurity::Unix => "unix socket",
        NbdSecurity::Tls => "TLS",
        NbdSecurity::MutualTls => "TLS with client certificates",
        NbdSecurity::Plaintext => "plaintext",
    };
    format!("{} ({security})", listener.address)
}

/// Each with the days that it has left.
fn certificates(all: &[TlsCertificate]) -> String {
    let lines = all.iter().map(|one| {
        let left = match one.days_left {
            ..0 => "expired".to_owned(),
            0 => "expires today".to_owned(),
            1 => "1 day left".to_owned(),
            days => format!("{days} days left"),
        };
        format!("{} ({left}, {})", one.file.display(), one.listener)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether it is on, by which setting, and its conditions.
fn dense(dense: &DenseStatus) -> String {
    let state = if dense.on { "on" } else { "off" };
    let conditions = match &dense.conditions {
        None => "no sample yet".to_owned(),
        Some(conditions) => conditions.words(),
    };
    format!("{state} (mode {}): {conditions}", dense.mode.word())
}

/// The number of I/O threads and why it is that.
fn threads(status: &Answer, now: SystemTime) -> String {
    let Some(policy) = &status.thread_policy else {
        return status.threads.to_string();
    };
    let name = serde_json::to_value(policy.policy).unwrap_or_default();
    let name = name.as_str().unwrap_or("unknown");
    let range = range(status.threads, policy);
    let rests = if policy.resting { ", resting" } else { "" };
    let mut text = format!("{}{range} (policy {name}{rests})", status.threads);
    if let Some(last) = &policy.last_change {
        let done = match last.action {
            IoThreadAction::Activate => "activated",
            _ => "parked",
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(last.at_ms);
        let ago = now.duration_since(at).unwrap_or_default();
        let ago = figures::seconds(ago.as_secs());
        let (thread, why) = (last.thread, &last.why);
        text.push_str(&format!("\nthread {thread} {done} {ago} ago: {why}"));
    }
    text
}

/// The numbers between which the policy chooses, unless there is no choice and the number is that one.
fn range(threads: u32, policy: &ThreadPolicyStatus) -> String {
    let (min, max) = (policy.min, policy.max);
    let wanted = match min == max {
        true => min.to_string(),
        false => format!("{min} to {max}"),
    };
    match (min..=max).contains(&threads) {
        true if min == max => String::new(),
        true => format!(" of {wanted}"),
        false if min == max => format!(" instead of {wanted}"),
        false => format!(", outside of {wanted}"),
    }
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![state(self.state).to_owned()]
    }

    fn table(&self, _: Detail) -> String {
        let config = self.config.as_ref().map_or_else(
            || "none: all defaults".to_owned(),
            |c| c.display().to_string(),
        );
        let listeners: Vec<String> = self.nbd_listeners.iter().map(listener).collect();
        let mut pairs = vec![
            (
                "state",
                format!(
                    "{} for {}",
                    state(self.state),
                    figures::seconds(self.uptime_s)
                ),
            ),
            ("version", self.version.clone()),
            ("process", self.pid.to_string()),
            ("root", self.root.display().to_string()),
            ("configuration", config),
            ("api socket", self.api_socket.display().to_string()),
            (
                "nbd",
                if listeners.is_empty() {
                    "none".to_owned()
                } else {
                    listeners.join("\n")
                },
            ),
            ("certificates", certificates(&self.tls_certificates)),
            (
                "dashboard",
                self.dashboard.clone().unwrap_or_else(|| "off".to_owned()),
            ),
            ("I/O threads", threads(self, SystemTime::now())),
            (
                "dense mode",
                self.dense.as_ref().map_or_else(String::new, dense),
            ),
            ("datastores", self.datastores.to_string()),
            (
                "disks",
                format!("{}, {} attached", self.disks, self.attached),
            ),
            ("clients", self.clients.to_string()),
        ];
        if self.tls_certificates.is_empty() {
            pairs.retain(|(key, _)| *key != "certificates");
        }
        if self.dense.is_none() {
            pairs.retain(|(key, _)| *key != "dense mode");
        }
        for problem in &self.problems {
            pairs.push(("problem", sentences(problem)));
        }
        table::pairs(&pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::config::ThreadPolicy;

    #[test]
    fn the_range_of_threads_is_shown_also_when_their_number_is_outside() {
        let policy = |min, max| ThreadPolicyStatus {
            policy: ThreadPolicy::Auto,
            min,
            max,
            resting: false,
            may_poll: true,
            last_change: None,
            moves: 0,
            activated: 0,
            parked: 0,
            kept: 0,
            undone: 0,
            void: 0,
            failed: 0,
            findings: 0,
            ticks: 0,
            cpu_us: 0,
        };
        for (threads, min, max, expected) in [
            (2, 2, 2, ""),
            (3, 2, 2, " instead of 2"),
            (2, 1, 4, " of 1 to 4"),
            (5, 1, 4, ", outside of 1 to 4"),
        ] {
            assert_eq!(range(threads, &policy(min, max)), expected);
        }
    }
}
