//! The experiment of the flash cache on real daemons, in its short form.

use super::*;

/// The scenario's file.
fn file() -> String {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    text(&scenarios.join("engine-flash-cache.toml"))
}

#[test]
fn a_cache_carries_more_tiles_on_real_daemons() {
    let scratch = scratch();
    let out = text(&scratch.path().join("results"));
    let words = ["lab", "run", &file(), "--on", "engine", "--scale", "0.4"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words).args(["--out", &out, "-o", "json"]);
    let place = scratch.path().join("daemons");
    fs::create_dir(&place).expect("a directory");
    let run = finished(command.env("TMPDIR", &place));
    assert_eq!(run.status, 0, "{}\n{}", run.out, run.err);
    assert_eq!(left(&place), 0, "daemons and caches are gone");
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    let checks = found["checks"].as_array().expect("checks");
    let of = |what: &str| -> Vec<f64> {
        let named = checks.iter().filter(|check| {
            let says = check["what"].as_str().expect("words");
            says.contains(what)
        });
        let ours = named.map(|check| check["ours"]["median"].as_f64().expect("a figure"));
        ours.collect()
    };
    let [none, small, large] = of("phases that pass")[..] else {
        panic!("three configurations: {}", run.out);
    };
    assert!(none < small && none < large, "{none} {small} {large}");
    assert!(
        of("I/Os that ended with an error")
            .iter()
            .all(|count| *count == 0.0)
    );
    let hits = of("the cache answers");
    assert!(hits.len() == 2 && hits.iter().all(|percent| *percent > 0.0));
    let page = fs::read_to_string(scratch.path().join("results/report.md")).expect("a report");
    for part in ["no cache", "small cache", "large cache"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn an_interrupted_run_with_caches_leaves_no_daemon_and_no_flash() {
    let scratch = scratch();
    let place = scratch.path().join("daemons");
    fs::create_dir(&place).expect("a directory");
    // Only the run with a cache.
    let whole = fs::read_to_string(file()).expect("a scenario");
    let begins = whole.find("[[expect]]").expect("it expects something");
    let expect = "[[expect]]\nwhat = \"hit-ratio\"\nconfiguration = \"no cache\"\nphase = \"1 tile\"\nat-least = 0\n\
                  source = \"made up\"\n";
    let cached = whole[..begins].replacen(
        "name = \"no cache\"",
        "name = \"no cache\"\ncache = \"64MiB\"",
        1,
    );
    let own = scratch.path().join("own.toml");
    fs::write(&own, format!("{cached}{expect}")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let out = text(&scratch.path().join("results"));
    command
        .args(["lab", "run", &text(&own), "--on", "engine", "--out", &out])
        .env("TMPDIR", &place);
    let (status, said) = interrupted(&mut command, "1/1: real daemons");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("resumes"), "{said}");
    assert_eq!(left(&place), 0, "daemons and caches are gone");
}
