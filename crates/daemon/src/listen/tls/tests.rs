//! Tests of usable and unusable TLS files: the error messages, and that the commands in their hints work.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// A directory with certificates in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    /// A self-signed certificate whose server requires client certificates of the same authority.
    fn good(&self) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = self.write("cert.pem", &made.cert.pem());
        TlsFiles {
            key: self.write("key.pem", &made.signing_key.serialize_pem()),
            client_ca: Some(certificate.clone()),
            certificate,
        }
    }

    /// Runs a command as a user would who reads it in a hint.
    fn run(&self, command: &str) -> String {
        let shell = Command::new("sh")
            .current_dir(self.0.path())
            .args(["-c", command])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&shell.stderr);
        assert!(shell.status.success(), "{command}: {said}");
        String::from_utf8_lossy(&shell.stdout).into_owned()
    }
}

fn refused(files: &TlsFiles) -> Problem {
    match server(files) {
        Ok(_) => panic!("{files:?} was taken"),
        Err(problem) => problem,
    }
}

fn why(problem: &Problem) -> String {
    problem.why.join(": ")
}

/// The commands in a hint.
fn commands(problem: &Problem) -> Vec<String> {
    let remedy = problem.remedy.as_deref().expect("it says what to do");
    let quoted = remedy.split('`').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

#[test]
fn good_files_make_a_server() {
    let folder = Folder::new();
    assert!(server(&folder.good()).unwrap().asks_clients);
}

#[test]
fn a_file_that_is_not_there_or_holds_something_else_is_named_with_what_is_in_it() {
    let folder = Folder::new();
    let good = folder.good();
    let empty = folder.write("empty.pem", "\n");
    let text = folder.write("text.pem", "no certificate at all\n");
    let gone = folder.at("gone.pem");
    let here = folder.0.path().to_owned();
    let pipe = folder.at("pipe");
    folder.run("mkfifo pipe");
    let (cert, key) = (good.certificate.clone(), good.key.clone());
    let broken = |certificate: &PathBuf, key: &PathBuf, client_ca: &PathBuf| TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: Some(client_ca.clone()),
    };
    for (files, name, reason, hint) in [
        (
            broken(&gone, &key, &cert),
            &gone,
            "No such file",
            "put the file there",
        ),
        (
            broken(&cert, &gone, &cert),
            &gone,
            "No such file",
            "put the file there",
        ),
        (
            broken(&cert, &key, &gone),
            &gone,
            "No such file",
            "put the file there",
        ),
        (
            broken(&here, &key, &cert),
            &here,
            "not a plain file",
            "path of a PEM file",
        ),
        (
            broken(&pipe, &key, &cert),
            &pipe,
            "not a plain file",
            "path of a PEM file",
        ),
        (
            broken(&cert, &pipe, &cert),
            &pipe,
            "not a plain file",
            "path of a PEM file",
        ),
        (
            broken(&cert, &key, &pipe),
            &pipe,
            "not a plain file",
            "path of a PEM file",
        ),
        (
            broken(&empty, &key, &cert),
            &empty,
            "it is empty",
            "write a certificate",
        ),
        (
            broken(&cert, &empty, &cert),
            &empty,
            "it is empty",
            "write a private key",
        ),
        (
            broken(&cert, &key, &empty),
            &empty,
            "it is empty",
            "write a certificate",
        ),
        (
            broken(&text, &key, &cert),
            &text,
            "no certificate in PEM",
            "give a PEM file",
        ),
        (
            broken(&key, &cert, &cert),
            &key,
            "a private key and no certificate",
            "swapped",
        ),
        (
            broken(&cert, &cert, &cert),
            &cert,
            "a certificate and no private key",
            "swapped",
        ),
    ] {
        let problem = refused(&files);
        assert!(
            problem.what.ends_with(&name.display().to_string()),
            "{problem}"
        );
        assert!(why(&problem).contains(reason), "{problem}");
        assert!(
            problem.remedy.as_deref().unwrap().contains(hint),
            "{problem}"
        );
    }
}

#[test]
fn a_chain_in_the_wrong_order_says_so_and_works_in_the_right_one() {
    let folder = Folder::new();
    let good = folder.good();
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    let own = fs::read_to_string(&good.certificate).unwrap();
    let certificate = folder.write("chain.pem", &(other.cert.pem() + &own));
    let files = TlsFiles {
        certificate,
        ..good
    };
    let problem = refused(&files);
    assert!(
        why(&problem).contains("wrong order: the key is that of number 2"),
        "{problem}"
    );
    assert!(
        problem
            .remedy
            .as_deref()
            .unwrap()
            .contains("own certificate first"),
        "{problem}"
    );
    folder.write("chain.pem", &(own + &other.cert.pem()));
    server(&files).unwrap();
}

#[test]
fn a_key_of_another_certificate_says_so_and_how_to_compare_them() {
    let folder = Folder::new();
    let good = folder.good();
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    let key = folder.write("other.pem", &other.signing_key.serialize_pem());
    let files = TlsFiles {
        key: key.clone(),
        ..good.clone()
    };
    let problem = refused(&files);
    assert!(problem.what.ends_with("other.pem"), "{problem}");
    assert!(
        why(&problem).contains("the key of another certificate"),
        "{problem}"
    );
    let [certificate, key] = commands(&problem).try_into().unwrap();
    assert_ne!(folder.run(&certificate), folder.run(&key));
    let key = key.replace("other.pem", "key.pem");
    assert_eq!(folder.run(&certificate), folder.run(&key));
}

#[test]
fn a_key_with_a_passphrase_says_so_and_works_without_it() {
    let folder = Folder::new();
    let good = folder.good();
    for cipher in ["pkcs8 -topk8 -v2 aes256", "ec -aes256"] {
        folder.run(&format!(
            "openssl {cipher} -in key.pem -out secret.pem -passout pass:secret 2>&1"
        ));
        let files = TlsFiles {
            key: folder.at("secret.pem"),
            ..good.clone()
        };
        let problem = refused(&files);
        assert!(
            why(&problem).contains("protected by a passphrase"),
            "{problem}"
        );
        let [command] = commands(&problem).try_into().unwrap();
        folder.run(&format!("{command} -passin pass:secret"));
        let key = folder.at("NEW.pem");
        server(&TlsFiles { key, ..files }).unwrap();
    }
}

#[test]
fn a_key_of_a_size_or_kind_that_cannot_be_used_names_both_and_those_that_can() {
    let folder = Folder::new();
    let request = "-x509 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem 2>&1";
    let files = TlsFiles {
        certificate: folder.at("cert.pem"),
        key: folder.at("key.pem"),
        client_ca: None,
    };
    for (kind, told) in [
        ("rsa:2432", "an RSA key of 2432 bits"),
        ("rsa:1024", "an RSA key of 1024 bits"),
        (
            "ec -pkeyopt ec_paramgen_curve:P-521",
            "an ECDSA key on P-521",
        ),
        (
            "ec -pkeyopt ec_paramgen_curve:secp256k1",
            "an ECDSA key on secp256k1",
        ),
        ("ed448", "an Ed448 key"),
    ] {
        folder.run(&format!("openssl req -newkey {kind} {request}"));
        let problem = refused(&files);
        assert!(problem.what.ends_with("key.pem"), "{problem}");
        assert!(why(&problem).contains(told), "{problem}");
        assert!(!problem.to_string().contains("may read"), "{problem}");
    }
    // Also in the traditional RSA format.
    folder.run("openssl genrsa -traditional -out key.pem 2432");
    assert!(why(&refused(&files)).contains("2432 bits"));
    // Every kind that the hint names, except RSA 4096, which takes too long to generate.
    let hint = refused(&files).remedy.unwrap();
    for (kind, named) in [
        ("rsa:2048", "2048"),
        ("rsa:3072", "3072"),
        ("ec -pkeyopt ec_paramgen_curve:P-256", "P-256"),
        ("ec -pkeyopt ec_paramgen_curve:P-384", "P-384"),
        ("ed25519", "Ed25519"),
    ] {
        assert!(hint.contains(named), "{hint}");
        folder.run(&format!("openssl req -newkey {kind} {request}"));
        server(&files).unwrap();
    }
}

#[test]
fn a_file_that_is_not_pem_says_what_it_is_and_how_it_becomes_pem() {
    let folder = Folder::new();
    let good = folder.good();
    folder.run("openssl x509 -in cert.pem -outform DER -out cert.der");
    folder.run("openssl pkey -in key.pem -outform DER -out key.der");
    folder.run("openssl pkcs12 -export -in cert.pem -inkey key.pem -passout pass: -out both.p12");
    let files = |certificate: &str, key: &str| TlsFiles {
        certificate: folder.at(certificate),
        key: folder.at(key),
        client_ca: None,
    };
    for (broken, is) in [
        (files("cert.der", "key.pem"), "it is DER"),
        (files("cert.pem", "key.der"), "it is DER"),
        (files("both.p12", "key.pem"), "it is PKCS#12"),
        (files("cert.pem", "both.p12"), "it is PKCS#12"),
    ] {
        let problem = refused(&broken);
        assert!(why(&problem).contains(is), "{problem}");
        let [command] = commands(&problem).try_into().unwrap();
        let ask = if command.contains("pkcs12") {
            " -passin pass:"
        } else {
            ""
        };
        folder.run(&format!("{command}{ask}"));
        let new = folder.at("NEW.pem");
        let mended = match broken.key == good.key {
            true => TlsFiles {
                certificate: new,
                ..broken
            },
            false => TlsFiles { key: new, ..broken },
        };
        server(&mended).unwrap();
    }
}

#[test]
fn of_a_chain_the_certificate_that_ends_first_counts() {
    let folder = Folder::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let until = |year: i32, name: &str| {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let chain = until(2040, "server") + &until(2023, "between");
    let files = TlsFiles {
        certificate: folder.write("chain.pem", &chain),
        key: folder.write("key.pem", &key.serialize_pem()),
        client_ca: None,
    };
    let mut all = expiry::Certificates::default();
    // It is still served.
    all.add("nbd".to_owned(), server(&files).unwrap().validity);
    let year_2023 = 1_672_531_200;
    assert_eq!(all.listed(0)[0].expires_at_ms, year_2023 * 1000);
    assert_eq!(all.listed(year_2023 + 1)[0].days_left, -1);
}
