//! The only place where this program enters the daemon's crate: running it, and reading what it documents.

use std::path::PathBuf;

use tidegate_api::config::Config;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_daemon::Root;

use crate::failure::Failure;

pub(crate) use tidegate_daemon::{OneOptions, ServeOptions};

/// Serves until a signal stops it.
pub(crate) fn serve(options: ServeOptions) -> Result<(), Failure> {
    tidegate_daemon::serve(options).map_err(failed)
}

/// Serves one disk until a signal stops it.
pub(crate) fn serve_one(options: OneOptions) -> Result<(), Failure> {
    tidegate_daemon::serve_one(options).map_err(failed)
}

/// Reads and checks the configuration that `serve` would use, and says where it is; none: there is no file, which is
/// fine.
pub(crate) fn check_config(options: &ServeOptions) -> Result<Option<PathBuf>, Failure> {
    tidegate_daemon::check_config(options).map_err(failed)
}

/// The socket of the root's daemon. A configuration that cannot be read is not this verb's business: the daemon that
/// read it says so.
pub(crate) fn api_socket(root: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let root = Root::find(root).map_err(failed)?;
    let config = tidegate_daemon::read_config_file(&root.config_file()).ok();
    let configured = config
        .and_then(|text| Config::read(&text).ok())
        .and_then(|config| config.api.socket);
    Ok(configured.map_or_else(|| root.api_socket(), |socket| root.path().join(socket)))
}

/// The REST interface as an OpenAPI document.
pub(crate) fn openapi_json() -> String {
    tidegate_daemon::openapi_json()
}

/// The reference of `tidegate.toml`, in Markdown.
pub(crate) fn config_reference() -> String {
    tidegate_daemon::config_reference()
}

/// The files of the control tree, in Markdown.
pub(crate) fn control_tree_reference() -> String {
    tidegate_daemon::control_tree_reference()
}

/// The list of metrics, in Markdown.
pub(crate) fn metrics_reference() -> String {
    tidegate_daemon::metrics_reference()
}

/// The daemon's error as it stands: a problem where it is one, else its chain of reasons.
fn failed(error: impl Into<anyhow::Error>) -> Failure {
    let error = match error.into().downcast::<Problem>() {
        Ok(problem) => return Failure::Failed(problem),
        Err(error) => error,
    };
    let mut problem = Problem::new(ProblemCode::Internal, error.to_string());
    for why in error.chain().skip(1) {
        problem = problem.because(why);
    }
    Failure::Failed(problem)
}
