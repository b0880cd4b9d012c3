//! Configurations that cannot be served: `check-config` and `serve` say the same of each.

use std::fs;

use crate::stage::Stage;

#[test]
fn check_config_and_serve_refuse_the_same_in_the_same_words() {
    let stage = Stage::empty();
    let config = stage.path("tidegate.toml");
    let tls = "[[nbd.tcp]]\nlisten = '127.0.0.1:0'\ntls =";
    for (text, named) in [
        ("[io]\ncpus = [4999]", "CPU 4999"),
        ("[log]\nfilter = 'none'", "'none'"),
        (
            &format!("{tls} {{ certificate = 'gone.pem', key = 'k.pem' }}"),
            "gone.pem",
        ),
        ("[nbd]\nsockets = ['n.sock', 'n.sock']", "n.sock twice"),
        ("[nbd]\nsockets = ['gone/n.sock']", "gone/n.sock"),
        ("[io]\nthread = 2", "unknown field"),
        ("[dashboard]\nlisten = '192.0.2.1:1'", "token_file"),
    ] {
        fs::write(&config, text).unwrap();
        let checked = stage.run(&["check-config"]);
        let served = stage.run(&["serve"]);
        assert_eq!(
            (checked.status, served.status),
            (1, 1),
            "{text}: {checked:?} {served:?}"
        );
        assert!(checked.err.contains(named), "{text}: {}", checked.err);
        // What follows from the configuration alone says also where that was read.
        let from = format!("\n  because it was read from {}", config.display());
        let without = |said: &str| said.replace(&from, "");
        let problem = served.err.find("error: ").map(|at| &served.err[at..]);
        assert_eq!(without(&checked.err), without(problem.unwrap_or_default()));
    }
    fs::write(&config, "[io]\ncpus = [0]").unwrap();
    assert_eq!(stage.run(&["check-config"]).status, 0);
}
