//! The samples of `top`: a thread reads the daemon's stream, so that the screen need not wait.
//!
//! A thread reads the stream and hands each sample over. It ends when the stream does, or when nobody takes its news
//! any more.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use tidegate_api::problem::Problem;
use tidegate_api::stats::Sample;

use crate::failure::Failure;
use crate::session::Session;
use crate::stats;

/// What came from the daemon.
#[derive(Debug)]
pub(super) enum News {
    /// The next sample.
    Sample(Sample),
    /// There will be no more, and why.
    Lost(Problem),
}

/// Samples as they come.
#[derive(Debug)]
pub(super) struct Feed {
    news: Receiver<News>,
}

impl Feed {
    /// Opens a stream of one sample each `interval`.
    pub(super) fn start(session: &Session, interval: Duration) -> Result<Feed, Failure> {
        let mut samples = stats::samples(session.client()?, interval)?;
        let (sender, news) = mpsc::channel();
        thread::spawn(move || {
            loop {
                let next = match samples.next() {
                    Ok(sample) => News::Sample(sample),
                    Err(failure) => match failure.problem() {
                        Some(problem) => News::Lost(problem.clone()),
                        None => return,
                    },
                };
                let last = matches!(next, News::Lost(_));
                if sender.send(next).is_err() || last {
                    return;
                }
            }
        });
        Ok(Feed { news })
    }

    /// What has come since it was last asked, if anything has.
    pub(super) fn news(&self) -> Option<News> {
        self.news.try_recv().ok()
    }
}
