//! Certificates and keys read from PEM files, with a precise error for each file that cannot be used.
//!
//! # Always true
//! - Every error names the file and says what it contains, what it should contain, and what to do.
//! - A file is read up to [`LONGEST`]. Of a key, only its kind and size are ever reported.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_api::problem::Problem;
use x509_parser::der_parser::ber::BerObject;
use x509_parser::der_parser::parse_der;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Chain, unusable};
use crate::os_error::Outcome;

/// The longest file that is read: the authorities of the whole Web need some 200 KiB.
const LONGEST: u64 = 4 << 20;

/// The parsed fields of one certificate.
pub(super) type Facts<'a> = X509Certificate<'a>;

/// The certificates in a file, in their order.
pub(super) fn certificates(path: &Path, what: &str) -> Outcome<Chain> {
    let bytes = read(path, what)?;
    let read: Result<Chain, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(chain) if chain.is_empty() => {
            let problem = unusable(what, path);
            let found = found(&bytes);
            Err(match found {
                Found::Key | Found::EncryptedKey => problem
                    .because("it holds a private key and no certificate")
                    .remedy("give the certificate's file; key and certificate may be swapped"),
                _ => no_pem(problem, found, "certificate", path),
            })
        }
        Ok(chain) => Ok(chain),
        Err(error) => Err(damaged(unusable(what, path).because_of(&error))),
    }
}

/// The private key in a file.
pub(super) fn key(path: &Path) -> Outcome<PrivateKeyDer<'static>> {
    let bytes = read(path, "key")?;
    let found = found(&bytes);
    if found == Found::EncryptedKey {
        return Err(unusable("key", path)
            .because("it is protected by a passphrase, which the daemon cannot ask for")
            .remedy(format!(
                "remove the passphrase: `openssl pkey -in {} -out NEW.pem`, and let only the daemon's user read \
                 NEW.pem",
                path.display()
            )));
    }
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => {
            let problem = unusable("key", path);
            Err(match found {
                Found::Certificate => problem
                    .because("it holds a certificate and no private key")
                    .remedy("give the key's file; key and certificate may be swapped"),
                _ => no_pem(problem, found, "private key", path),
            })
        }
        Err(error) => Err(damaged(unusable("key", path).because_of(&error))),
    }
}

/// The parsed fields of each certificate of a chain.
pub(super) fn facts<'a>(path: &Path, chain: &'a Chain) -> Outcome<Vec<Facts<'a>>> {
    let facts = chain.iter().zip(1..).map(|(der, place)| {
        X509Certificate::from_der(der)
            .map(|(_, facts)| facts)
            .map_err(|error| {
                let why = format!("its certificate number {place} cannot be understood: {error}");
                damaged(unusable("certificate", path).because(why))
            })
    });
    facts.collect()
}

/// The error for a key that was read but cannot be used, nearly always because of its kind or size.
pub(super) fn unusable_key(path: &Path, key: &PrivateKeyDer<'_>, error: &rustls::Error) -> Problem {
    let problem = unusable("key", path);
    let problem = match kind(key) {
        Some(kind) => problem.because(format!("it is {kind}, which cannot be used here")),
        None => problem.because_of(error),
    };
    problem.remedy(
        "make a new key and a certificate for it: RSA of 2048, 3072 or 4096 bits, ECDSA on P-256 or P-384, or Ed25519, \
         such as by `openssl req -newkey rsa:3072 -nodes -keyout KEY.pem -out REQUEST.pem`",
    )
}

fn read(path: &Path, what: &str) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    // Without this flag, opening a pipe without a writer would block for ever.
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(nonblock).open(path);
    let read = opened.and_then(|file| {
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::other("it is not a plain file"));
        }
        file.take(LONGEST).read_to_end(&mut bytes)
    });
    let error = match read {
        Ok(_) => return Ok(bytes),
        Err(error) => error,
    };
    let problem = unusable(what, path).because(&error);
    Err(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => problem.remedy(
            "put the file there, or give its path; in the configuration, paths without a leading / are relative to \
             the root",
        ),
        io::ErrorKind::PermissionDenied => problem.remedy(format!(
            "let user {} read it, and search the directories above it: see `namei -l {}`",
            rustix::process::geteuid().as_raw(),
            path.display()
        )),
        _ => problem.remedy("give the path of a PEM file"),
    })
}

fn damaged(problem: Problem) -> Problem {
    problem.remedy("get the file again in PEM")
}

/// The content of a file, judged by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Certificate,
    Key,
    EncryptedKey,
    /// PEM of something else.
    Other,
    /// PKCS#12: key and certificate together, in DER.
    Pkcs12,
    /// Something in DER.
    Der,
    Empty,
    Unknown,
}

fn found(bytes: &[u8]) -> Found {
    let text = String::from_utf8_lossy(bytes);
    let labels: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("-----BEGIN ")?
                .strip_suffix("-----")
        })
        .collect();
    let has = |end: &str| labels.iter().any(|label| label.ends_with(end));
    if has("ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Found::EncryptedKey;
    }
    if has("PRIVATE KEY") {
        return Found::Key;
    }
    if has("CERTIFICATE") {
        return Found::Certificate;
    }
    match bytes {
        _ if !labels.is_empty() => Found::Other,
        _ if text.trim().is_empty() => Found::Empty,
        _ => match parse_der(bytes) {
            // PKCS#12 starts with its version.
            Ok((_, whole)) if starts_with_version_3(&whole) => Found::Pkcs12,
            Ok(_) => Found::Der,
            Err(_) => Found::Unknown,
        },
    }
}

fn starts_with_version_3(whole: &BerObject<'_>) -> bool {
    let parts = whole.as_sequence().ok();
    let first = parts.and_then(|parts| parts.first());
    first.is_some_and(|first| first.as_u32() == Ok(3))
}

/// The error for a file that lacks the wanted content, with the command that converts what it contains.
fn no_pem(problem: Problem, found: Found, what: &str, path: &Path) -> Problem {
    let path = path.display();
    let program = if what == "certificate" {
        "x509"
    } else {
        "pkey"
    };
    match found {
        Found::Empty => problem
            .because(format!("it is empty: it holds no {what}"))
            .remedy(format!("write a {what} in PEM to it")),
        Found::Pkcs12 => problem.because("it is PKCS#12, not PEM").remedy(format!(
            "convert it to PEM: `openssl pkcs12 -in {path} -nodes -out NEW.pem`"
        )),
        Found::Der => problem.because("it is DER, not PEM").remedy(format!(
            "convert it to PEM: `openssl {program} -inform DER -in {path} -out NEW.pem`"
        )),
        _ => problem
            .because(format!("it holds no {what} in PEM"))
            .remedy(format!("give a PEM file with a {what}")),
    }
}

/// Describes the kind of a key; `None` if it cannot be determined.
fn kind(key: &PrivateKeyDer<'_>) -> Option<String> {
    let parsed = parse_der(key.secret_der()).ok()?.1;
    let parts = parsed.as_sequence().ok()?;
    match key {
        PrivateKeyDer::Pkcs1(_) => rsa(parts),
        PrivateKeyDer::Sec1(_) => {
            let named = parts.iter().find(|part| part.header.tag().0 == 0)?;
            let oid = parse_der(named.as_slice().ok()?).ok()?.1;
            Some(curve(&oid.as_oid().ok()?.to_id_string()))
        }
        PrivateKeyDer::Pkcs8(_) => {
            let algorithm = parts.get(1)?.as_sequence().ok()?;
            let oid = algorithm.first()?.as_oid().ok()?.to_id_string();
            match oid.as_str() {
                "1.2.840.113549.1.1.1" => {
                    let inner = parse_der(parts.get(2)?.as_slice().ok()?).ok()?.1;
                    rsa(inner.as_sequence().ok()?)
                }
                "1.2.840.10045.2.1" => {
                    Some(curve(&algorithm.get(1)?.as_oid().ok()?.to_id_string()))
                }
                "1.3.101.113" => Some("an Ed448 key".to_owned()),
                "1.2.840.10040.4.1" => Some("a DSA key".to_owned()),
                other => Some(format!("a key of algorithm {other}")),
            }
        }
        _ => None,
    }
}

/// Describes an RSA key by the bits of its modulus. The key is a sequence: version, modulus, and more.
fn rsa(parts: &[BerObject<'_>]) -> Option<String> {
    let modulus = parts.get(1)?.as_slice().ok()?;
    let first = modulus.iter().position(|byte| *byte != 0)?;
    let bits = (modulus.len() - first) * 8 - modulus[first].leading_zeros() as usize;
    Some(format!("an RSA key of {bits} bits"))
}

fn curve(oid: &str) -> String {
    let name = match oid {
        "1.2.840.10045.3.1.7" => "P-256",
        "1.3.132.0.34" => "P-384",
        "1.3.132.0.35" => "P-521",
        "1.3.132.0.10" => "secp256k1",
        other => return format!("an ECDSA key on the curve {other}"),
    };
    format!("an ECDSA key on {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_holds_is_told_by_its_first_words() {
        let pem =
            |label: &str| format!("text\n-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        for (label, is) in [
            ("CERTIFICATE", Found::Certificate),
            ("RSA PRIVATE KEY", Found::Key),
            ("PRIVATE KEY", Found::Key),
            ("ENCRYPTED PRIVATE KEY", Found::EncryptedKey),
            ("DH PARAMETERS", Found::Other),
        ] {
            assert_eq!(found(pem(label).as_bytes()), is, "{label}");
        }
        assert_eq!(found(b" \n"), Found::Empty);
        assert_eq!(found(b"hello"), Found::Unknown);
        assert_eq!(found(&[0x30, 3, 2, 1, 3]), Found::Pkcs12);
        assert_eq!(found(&[0x30, 3, 2, 1, 0]), Found::Der);
    }
}
