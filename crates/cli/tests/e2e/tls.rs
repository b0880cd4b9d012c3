//! NBD over TCP: private, or on loopback in plain words; and what a silent stranger can do there, which is nothing.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find, nbdsh};
use crate::support::server::TIDEGATE;

/// The longest that a client may take to choose its disk (30 s), and a busy machine's slack.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Authorities and what they signed, as libnbd and the daemon want their files.
struct Pki {
    dir: PathBuf,
}

impl Pki {
    /// An authority, a server for `localhost` and a client.
    fn new(place: &Place, name: &str) -> Pki {
        let dir = place.join(name);
        fs::create_dir(&dir).expect("a directory can be made");
        let pki = Pki { dir };
        pki.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout ca-key.pem -out ca-cert.pem"
        ));
        for (who, names) in [
            ("server", "DNS:localhost,IP:127.0.0.1"),
            ("client", "DNS:client"),
        ] {
            let usage = format!("subjectAltName={names}\nextendedKeyUsage={who}Auth\n");
            fs::write(pki.file(&format!("{who}.ext")), usage).expect("a file can be written");
            pki.openssl(&format!(
                "req -newkey rsa:2048 -nodes -subj /CN={who} -keyout {who}-key.pem -out {who}.csr"
            ));
            pki.openssl(&format!(
                "x509 -req -in {who}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
                 -extfile {who}.ext -out {who}-cert.pem"
            ));
        }
        pki
    }

    /// A client's directory that trusts this authority and shows nothing of its own.
    fn anonymous(&self, place: &Place) -> PathBuf {
        let dir = place.join("anonymous");
        fs::create_dir(&dir).expect("a directory can be made");
        fs::copy(self.file("ca-cert.pem"), dir.join("ca-cert.pem")).expect("a file can be copied");
        dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn openssl(&self, args: &str) {
        // Names without a directory in the arguments are this authority's files.
        let args = args.split_whitespace().map(|word| {
            let ours = word.ends_with(".pem") || word.ends_with(".csr") || word.ends_with(".ext");
            if ours {
                self.file(word).display().to_string()
            } else {
                word.to_owned()
            }
        });
        Program::new("openssl").args(args).run();
    }
}

/// A port on loopback that nobody has just now.
fn free_address() -> String {
    let probe = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    probe.local_addr().expect("it has an address").to_string()
}

fn serve_tls(place: &Place, pki: &Pki, client_ca: Option<&Path>) -> (Daemon, String) {
    let address = free_address();
    let certificate = pki.file("server-cert.pem").display().to_string();
    let key = pki.file("server-key.pem").display().to_string();
    let mut args = vec![
        "--nbd-tcp",
        &address,
        "--tls-certificate",
        &certificate,
        "--tls-key",
        &key,
    ];
    let client_ca = client_ca.map(|file| file.display().to_string());
    if let Some(file) = &client_ca {
        args.extend(["--tls-client-ca", file]);
    }
    let daemon = Daemon::start_with(place, "root", &args);
    (daemon, address)
}

/// The address of `disk0` for a client whose certificates lie in `dir`.
fn nbds(address: &str, dir: &Path) -> String {
    let port = address.rsplit(':').next().expect("an address has a port");
    format!(
        "nbds://localhost:{port}/disk0?tls-certificates={}",
        dir.display()
    )
}

/// nbdinfo, which must be turned away.
fn turned_away(uri: &str) {
    let output = Program::new("nbdinfo").arg(uri).output();
    assert!(!output.status.success(), "{uri} is let in");
    assert_ne!(output.status.code(), Some(124), "{uri} is left waiting");
}

#[test]
fn clients_that_trust_the_servers_authority_copy_both_ways_and_others_are_turned_away() {
    let place = Place::new();
    let pki = Pki::new(&place, "ours");
    let (daemon, address) = serve_tls(&place, &pki, None);
    let uri = nbds(&address, &pki.anonymous(&place));
    let info = Program::new("nbdinfo").arg(&uri).run();
    assert!(info.contains("with TLS"), "{info}");

    let noise = place.noise("noise", 16 * MIB);
    let back = place.join("back");
    Program::new("nbdcopy")
        .arg("--flush")
        .arg(&noise)
        .arg(&uri)
        .run();
    // disk0 is larger than what was copied in: its beginning is compared.
    Program::new("nbdcopy")
        .arg(daemon.nbd_uri("disk0"))
        .arg(&back)
        .run();
    let same = |copy: &Path| {
        let mut start = vec![0; 16 << 20];
        let mut file = fs::File::open(copy).expect("the copy is there");
        file.read_exact(&mut start)
            .expect("a copy is as long as the disk");
        start == fs::read(&noise).expect("it was written")
    };
    assert!(same(&back), "TLS brought in something else");
    Program::new("nbdcopy").arg(&uri).arg(&back).run();
    assert!(same(&back), "TLS brought out something else");

    let stranger = Pki::new(&place, "strange");
    turned_away(&nbds(&address, &stranger.dir));
    turned_away(&format!("nbd://{address}/disk0"));
    Program::new("nbdinfo").arg(&uri).run();
}

#[test]
fn clients_without_a_certificate_of_the_authority_are_refused_where_one_is_required() {
    let place = Place::new();
    let pki = Pki::new(&place, "ours");
    let stranger = Pki::new(&place, "strange");
    let (_daemon, address) = serve_tls(&place, &pki, Some(&pki.file("ca-cert.pem")));
    Program::new("nbdinfo").arg(nbds(&address, &pki.dir)).run();
    turned_away(&nbds(&address, &pki.anonymous(&place)));
    // Trusts the server, but is vouched for by somebody else.
    fs::copy(pki.file("ca-cert.pem"), stranger.file("ca-cert.pem")).expect("a file can be copied");
    turned_away(&nbds(&address, &stranger.dir));
    Program::new("nbdinfo").arg(nbds(&address, &pki.dir)).run();
}

#[test]
fn plaintext_is_served_on_loopback_when_asked_for_by_name_and_nowhere_else() {
    let place = Place::new();
    let address = free_address();
    let port = address.rsplit(':').next().expect("an address has a port");
    let everywhere = format!("0.0.0.0:{port}");
    for (args, why) in [
        (vec!["--nbd-tcp", &address], "--plaintext"),
        (vec!["--nbd-tcp", &everywhere, "--plaintext"], "loopback"),
    ] {
        let output = Program::at(TIDEGATE)
            .env("TIDEGATE_ROOT", place.join("root"))
            .arg("serve")
            .args(args)
            .output();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
    let _daemon = Daemon::start_with(&place, "root", &["--nbd-tcp", &address, "--plaintext"]);
    Program::new("nbdinfo")
        .arg(format!("nbd://{address}/disk0"))
        .run();
}

#[test]
fn a_silent_handshake_is_dropped_without_affecting_other_clients() {
    /// The option by which a client asks for TLS, and the server's consent.
    const START_TLS: u32 = 5;
    const CONSENT: u32 = 1;
    /// A client of libnbd that says no more once TLS is agreed on.
    const FALL_SILENT: &str = "
import os, select
h.set_uri_allow_local_file(True)
h.set_opt_mode(True)
h.connect_uri(os.environ['SERVER'])
assert h.get_tls_negotiated() and h.aio_is_negotiating()
print('silent', flush=True)
line = select.poll()
line.register(h.aio_get_fd(), select.POLLRDHUP)
assert line.poll(1000 * int(os.environ['PATIENCE'])), 'it is not dropped'
print('dropped', flush=True)
";
    let place = Place::new();
    let pki = Pki::new(&place, "ours");
    let (_daemon, address) = serve_tls(&place, &pki, None);
    let uri = nbds(&address, &pki.anonymous(&place));
    let connect = || {
        let mut client = TcpStream::connect(&address).expect("the daemon listens");
        client
            .set_read_timeout(Some(HANDSHAKE))
            .expect("a deadline can be set");
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).expect("a server greets");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        client
    };
    let mut early = connect();
    let mut late = connect();
    let mut words = 3_u32.to_be_bytes().to_vec();
    words.extend(b"IHAVEOPT");
    words.extend(START_TLS.to_be_bytes());
    words.extend(0_u32.to_be_bytes());
    late.write_all(&words).expect("the server listens");
    let mut consent = [0; 20];
    late.read_exact(&mut consent).expect("the server answers");
    assert_eq!(consent[12..16], CONSENT.to_be_bytes());

    let mut private = Service::start(
        "who is silent inside TLS",
        find("nbdsh").as_os_str(),
        &["-c".to_owned(), FALL_SILENT.to_owned()],
        &[
            ("PATH", "/usr/bin:/bin".to_owned()),
            ("SERVER", uri.clone()),
            ("PATIENCE", HANDSHAKE.as_secs().to_string()),
        ],
    );
    private
        .said
        .wait("silence", 0, PATIENCE, |said| said.find("silent\n"));

    Program::new("nbdinfo").arg(&uri).run();
    for client in [&mut early, &mut late] {
        match client.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("a silent client is not dropped: {other:?}"),
        }
    }
    assert!(private.end().success(), "{}", private.said.text());
    Program::new("nbdinfo").arg(&uri).run();
}

#[test]
fn one_client_on_standard_input_speaks_tls_where_certificates_are_named() {
    let place = Place::new();
    let pki = Pki::new(&place, "ca");
    let image = place.image("image", MIB);
    let connect = |certificates: &Path| {
        let file = |name: &str| pki.file(name).display().to_string();
        let script = format!(
            "h.set_tls(nbd.TLS_REQUIRE)\n\
             h.set_tls_certificates({:?})\n\
             h.connect_command([{TIDEGATE:?}, 'serve-one', {:?}, '-s', '--tls-certificate', {:?}, \
             '--tls-key', {:?}, '--tls-client-ca', {:?}])\n\
             print(h.get_size())\n",
            certificates.display().to_string(),
            image.display().to_string(),
            file("server-cert.pem"),
            file("server-key.pem"),
            file("ca-cert.pem"),
        );
        nbdsh().args(["-c", &script]).output()
    };
    let known = connect(&pki.dir);
    let said = String::from_utf8_lossy(&known.stdout);
    assert_eq!(said.trim(), "1048576", "{known:?}");
    assert!(!connect(&pki.anonymous(&place)).status.success());
}
