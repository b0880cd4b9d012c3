//! Makes a TLS server of certificate files, with or without certificates asked of clients.
//!
//! The NBD listener asks at start, so that a file that cannot be used stops the daemon and not the first client.
//!
//! # Always true
//! - TLS 1.2 or 1.3; nothing older is offered.
//! - With a client authority named, a client without a certificate of its making gets no further than the handshake.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tidegate_api::problem::Problem;
use tokio_rustls::TlsAcceptor;

use crate::plan::TlsFiles;
use crate::trouble::{self, Outcome};

/// The server that these files describe.
pub(crate) fn acceptor(files: &TlsFiles) -> Outcome<TlsAcceptor> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|e| unusable("key", &files.key).because_of(&e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| trouble::invalid("cannot set up TLS").because_of(&e))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|e| unusable("client authority", path).because_of(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|e| unusable("client authority", path).because_of(&e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|e| unusable("certificate", &files.certificate).because_of(&e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Outcome<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(chain) if chain.is_empty() => {
            Err(unusable("certificate", path).because("it holds no certificate"))
        }
        Ok(chain) => Ok(chain),
        Err(error) => Err(unusable("certificate", path).because_of(&error)),
    }
}

fn unusable(what: &str, path: &Path) -> Problem {
    trouble::invalid(format!("cannot use the TLS {what} {}", path.display()))
        .remedy("give a PEM file that the daemon's user may read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(folder: &Path) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = folder.join("cert.pem");
        let key = folder.join("key.pem");
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        TlsFiles {
            certificate: certificate.clone(),
            key,
            client_ca: Some(certificate),
        }
    }

    #[test]
    fn good_files_make_a_server() {
        let folder = tempfile::tempdir().unwrap();
        acceptor(&files(folder.path())).unwrap();
    }

    #[test]
    fn a_missing_a_swapped_and_an_empty_file_are_errors_that_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let good = files(folder.path());
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        for (broken, name) in [
            (
                TlsFiles {
                    key: folder.path().join("gone.pem"),
                    ..good.clone()
                },
                "gone.pem",
            ),
            (
                TlsFiles {
                    key: good.certificate.clone(),
                    ..good.clone()
                },
                "cert.pem",
            ),
            (
                TlsFiles {
                    certificate: empty.clone(),
                    ..good.clone()
                },
                "empty.pem",
            ),
            (
                TlsFiles {
                    client_ca: Some(empty),
                    ..good
                },
                "empty.pem",
            ),
        ] {
            let Err(problem) = acceptor(&broken) else {
                panic!("{broken:?} was taken")
            };
            assert!(problem.to_string().contains(name), "{problem}");
        }
    }
}
