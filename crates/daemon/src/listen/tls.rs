//! The TLS server of a listener, made from certificate files, with optional client certificates.
//!
//! Both `serve` and `check-config` build it before anything listens, so that an unusable file stops the daemon and not
//! the first client. [`files`] reports what is wrong with a file. [`expiry`] watches how long certificates last.
//! [`refused`] reports why a client was refused.
//!
//! # Always true
//! - TLS 1.2 or 1.3; nothing older is offered.
//! - With a client authority configured, a client without a certificate signed by it fails the handshake.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tidegate_api::problem::Problem;
use tokio_rustls::TlsAcceptor;

use crate::config::plan::TlsFiles;
use crate::os_error::{self, Outcome};

pub(crate) mod expiry;
mod files;
pub(crate) mod refused;

use expiry::Validity;

/// A TLS server that is ready to accept connections.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) acceptor: TlsAcceptor,
    /// The validity of the certificate in its chain that expires first.
    pub(crate) validity: Validity,
    /// Whether clients must present certificates.
    pub(crate) asks_clients: bool,
}

/// The server that these files describe.
pub(crate) fn server(files: &TlsFiles) -> Outcome<Server> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = files::certificates(&files.certificate, "certificate")?;
    let key = files::key(&files.key)?;
    let facts = files::facts(&files.certificate, &chain)?;
    must_belong(files, &facts, &key, &provider)?;
    let validity = Validity::of(&files.certificate, &facts);
    drop(facts);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| os_error::invalid("cannot set up TLS").because_of(&e))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider)
                    .build()
                    .map_err(|e| unusable("client authority", path).because_of(&e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|e| unusable("certificate", &files.certificate).because_of(&e))?;
    Ok(Server {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        validity,
        asks_clients: files.client_ca.is_some(),
    })
}

/// The authorities whose clients are admitted.
fn authorities(path: &Path) -> Outcome<RootCertStore> {
    let certificates = files::certificates(path, "client authority")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|e| {
            unusable("client authority", path)
                .because_of(&e)
                .remedy("give the certificates of the authorities that sign clients', in PEM")
        })?;
    }
    Ok(roots)
}

/// Fails unless the key is usable and matches the first certificate, which is the server's own.
fn must_belong(
    files: &TlsFiles,
    chain: &[files::Facts<'_>],
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Outcome<()> {
    let signer = provider
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|e| files::unusable_key(&files.key, key, &e))?;
    let Some(public) = signer.public_key() else {
        return Ok(());
    };
    let place = chain
        .iter()
        .position(|certificate| certificate.public_key().raw == public.as_ref());
    let (certificate, key) = (files.certificate.display(), files.key.display());
    match place {
        Some(0) => Ok(()),
        Some(place) => Err(unusable("certificate", &files.certificate)
            .because(format!(
                "its certificates are in the wrong order: the key is that of number {}, {}, which must be the first",
                place + 1,
                chain[place].subject()
            ))
            .remedy(
                "write them in order: the server's own certificate first, then the one that signed it, and so on",
            )),
        None => Err(unusable("key", &files.key)
            .because(format!(
                "it is the key of another certificate than that in {certificate}, {}",
                chain[0].subject()
            ))
            .remedy(format!(
                "give the key of this certificate; then these two print the same: `openssl x509 -in {certificate} \
                 -noout -pubkey` and `openssl pkey -in {key} -pubout`"
            ))),
    }
}

fn unusable(what: &str, path: &Path) -> Problem {
    os_error::invalid(format!("cannot use the TLS {what} {}", path.display()))
}

/// A certificate chain in the order in which it is sent.
type Chain = Vec<CertificateDer<'static>>;

#[cfg(test)]
mod tests;
