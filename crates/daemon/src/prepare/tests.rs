//! Tests that `check_config` finds each configuration that `serve` would refuse, and that its hints work.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::*;

/// A root with a configuration.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let root = place.root();
        root.create().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        place.write("cert.pem", &made.cert.pem());
        place.write("key.pem", &made.signing_key.serialize_pem());
        place.write("token", "not much of a secret");
        let private = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
        fs::set_permissions(root.path().join("token"), private).unwrap();
        place
    }

    fn root(&self) -> Root {
        Root::find(Some(self.0.path().to_owned())).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn check(&self, config: &str) -> Outcome<()> {
        self.write("tidegate.toml", config);
        let options = ServeOptions {
            root: Some(self.0.path().to_owned()),
            ..ServeOptions::default()
        };
        let checked = check_config(&options);
        checked
            .map(drop)
            .map_err(|error| error.downcast().expect("a problem"))
    }

    fn refused(&self, config: &str) -> Problem {
        self.check(config).expect_err(config)
    }
}

#[test]
fn what_serve_would_refuse_is_found_with_a_hint() {
    let place = Place::new();
    let tls = |rest: &str| {
        format!("[[nbd.tcp]]\nlisten = '127.0.0.1:0'\ntls = {{ certificate = 'cert.pem', {rest} }}")
    };
    for (config, what, hint) in [
        ("[io]\ncpus = [4999]", "CPU 4999", "name CPUs of those"),
        ("[log]\nfilter = 'verbose'", "'verbose'", "\"info\""),
        ("[log]\nfilter = 'a=b=c'", "a=b=c", "\"info\""),
        (&tls("key = 'gone.pem'"), "gone.pem", "put the file there"),
        (&tls("key = 'cert.pem'"), "no private key", "swapped"),
        (
            &tls("key = 'key.pem', client_ca = 'none.pem'"),
            "none.pem",
            "put the file there",
        ),
        (
            "[nbd]\nsockets = ['a.sock', './a.sock']",
            "a.sock twice",
            "or change it",
        ),
        (
            "[nbd]\nsockets = ['run/../run/tidegate.sock']",
            "in api.socket and in nbd.sockets",
            "or change it",
        ),
        (
            "[api]\nsocket = 'gone/api.sock'",
            "gone/api.sock",
            "mkdir -p",
        ),
        ("[api]\nsocket = 'token'", "not a socket", "move it away"),
        (
            "[dashboard]\nlisten = '192.0.2.1:0'\ntoken_file = 'token'\ntls = { certificate = 'cert.pem', key = 'key.pem' }",
            "192.0.2.1:0",
            "ip addr",
        ),
        (
            "[dashboard]\nlisten = '127.0.0.1:0'\ntoken_file = 'gone'",
            "gone",
            "put a token",
        ),
        ("[host]\nname = ''", "host.name", "leave it out"),
    ] {
        let problem = place.refused(config);
        let told = problem.to_string();
        assert!(told.contains(what), "{config}: {told}");
        let remedy = problem
            .remedy
            .unwrap_or_else(|| panic!("{config} has no hint: {told}"));
        assert!(remedy.contains(hint), "{config}: {remedy}");
        assert!(told.contains("tidegate.toml"), "{told}");
    }
    place.check(&tls("key = 'key.pem'")).unwrap();
    place.check("").unwrap();
    // The changes that the hints suggest work.
    fs::create_dir(place.0.path().join("gone")).unwrap();
    place.check("[api]\nsocket = 'gone/api.sock'").unwrap();
    place.check("[io]\ncpus = [0]").unwrap();
}

#[test]
fn a_dashboard_without_an_address_is_refused_too_if_its_files_are_wrong() {
    let place = Place::new();
    place.write("open", "not much of a secret");
    let everybody = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    fs::set_permissions(place.0.path().join("open"), everybody).unwrap();
    for (keys, what) in [
        ("token_file = 'gone'", "gone"),
        ("token_file = 'open'", "open"),
        ("metrics_token_file = 'gone'", "gone"),
        ("metrics_token_file = 'open'", "open"),
        ("tls = { certificate = 'gone', key = 'key.pem' }", "gone"),
    ] {
        let problem = place.refused(&format!("[dashboard]\n{keys}"));
        assert!(problem.to_string().contains(what), "{keys}: {problem}");
        assert!(problem.remedy.is_some(), "{keys}: {problem}");
    }
    place.check("[dashboard]\ntoken_file = 'token'").unwrap();
}

#[test]
fn one_port_twice_is_found_also_where_an_address_stands_for_all() {
    let place = Place::new();
    let two = |one: &str, other: &str| {
        let tls = "tls = { certificate = 'cert.pem', key = 'key.pem' }";
        let one = format!("[[nbd.tcp]]\nlisten = '{one}'\n{tls}\n");
        place.check(&format!("{one}[dashboard]\nlisten = '{other}'"))
    };
    for (one, other) in [
        ("127.0.0.1:18433", "127.0.0.1:18433"),
        ("0.0.0.0:18433", "127.0.0.1:18433"),
        ("[::]:18433", "127.0.0.1:18433"),
        ("[::]:18433", "[::1]:18433"),
    ] {
        let told = two(one, other).unwrap_err().to_string();
        assert!(told.contains(one) && told.contains(other), "{told}");
        assert!(told.contains("nbd.tcp and in dashboard.listen"), "{told}");
        // The refusal is right: the two listeners do conflict.
        let _first = TcpListener::bind(one).unwrap();
        assert!(TcpListener::bind(other).is_err(), "{one} {other}");
    }
    two("127.0.0.1:0", "127.0.0.1:0").unwrap();
}

#[test]
fn what_somebody_else_has_is_found_and_what_this_roots_daemon_has_is_not_held_against_it() {
    let place = Place::new();
    let root = place.root();
    let _api = UnixListener::bind(root.api_socket()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = port.local_addr().unwrap();
    let config = format!("[[nbd.tcp]]\nlisten = '{tcp}'\nplaintext = true");
    let told = place.refused("").to_string();
    assert!(told.contains("another process listens there"), "{told}");
    let without = format!("[api]\nsocket = 'own.sock'\n{config}");
    let told = place.refused(&without).to_string();
    assert!(
        told.contains(&tcp.to_string()) && told.contains("another port"),
        "{told}"
    );
    // This process is the daemon now.
    assert_eq!(root.daemon(), None);
    let _lock = root.lock().unwrap();
    assert_eq!(root.daemon(), Some(std::process::id()));
    place.check(&config).unwrap();
}

#[test]
fn damaged_state_without_which_the_daemon_does_not_start_is_found() {
    let place = Place::new();
    let state = place.root().state();
    for file in ["attached.toml", "host-id"] {
        fs::write(state.join(file), "nonsense").unwrap();
        let problem = place.refused("");
        assert!(problem.to_string().contains(file), "{problem}");
        assert!(problem.remedy.is_some(), "{problem}");
        fs::remove_file(state.join(file)).unwrap();
    }
    place.check("").unwrap();
}

#[test]
fn a_root_that_cannot_be_made_is_found_and_one_that_can_is_not_made() {
    let place = Place::new();
    let check = |root: &str| {
        let root = Some(place.0.path().join(root));
        let options = ServeOptions {
            root,
            ..ServeOptions::default()
        };
        check_config(&options)
    };
    check("deep/er").unwrap();
    assert!(!place.0.path().join("deep").exists());
    let told = check("token/root").unwrap_err().to_string();
    assert!(
        told.contains("token/root") && told.contains("--root DIR"),
        "{told}"
    );
}

#[test]
fn what_is_said_at_the_start_comes_before_the_configuration() {
    let place = tempfile::tempdir().unwrap();
    let root = Root::find(Some(place.path().to_owned())).unwrap();
    let text = "[api]\nsocket = \"/run/file.sock\"\n[io]\nthreads = 2\n";
    std::fs::write(root.config_file(), text).unwrap();
    let read = |options: ServeOptions| {
        let (config, _) = read_config(&root, &options).unwrap();
        (config.api.socket, config.io.threads)
    };
    let file = read(ServeOptions::default());
    assert_eq!(
        file,
        (Some("/run/file.sock".into()), Some(Threads::Count(2)))
    );
    let said = read(ServeOptions {
        api_socket: Some("/run/said.sock".into()),
        threads: Some(Threads::Count(3)),
        ..ServeOptions::default()
    });
    assert_eq!(
        said,
        (Some("/run/said.sock".into()), Some(Threads::Count(3)))
    );
}

#[test]
fn a_configuration_that_is_a_pipe_or_has_no_end_is_refused_at_once() {
    let place = Place::new();
    let pipe = place.0.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    for (config, why) in [
        (pipe, "a pipe, not a plain file"),
        ("/dev/zero".into(), "longer than 1048576 bytes"),
    ] {
        let options = ServeOptions {
            root: Some(place.0.path().to_owned()),
            config: Some(config.clone()),
            ..ServeOptions::default()
        };
        let error = check_config(&options).expect_err("it is refused");
        let problem: Problem = error.downcast().expect("a problem");
        assert!(problem.why.join(": ").contains(why), "{problem}");
        let hint = problem.remedy.as_deref().unwrap_or_default();
        assert!(hint.contains("path of a configuration file"), "{problem}");
    }
}
