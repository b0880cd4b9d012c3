//! The reason why a TLS client was refused, for the log.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// The reason in the handshake's error.
pub(crate) fn reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::NoCertificatesPresented) => {
            "it sent no certificate, and client_ca requires one".to_owned()
        }
        Some(Error::InvalidCertificate(why)) => certificate(why),
        Some(Error::AlertReceived(alert)) => told(*alert),
        Some(Error::PeerIncompatible(_) | Error::PeerMisbehaved(_)) => {
            format!("it supports neither TLS 1.2 nor 1.3: {error}")
        }
        Some(Error::InvalidMessage(_)) => "it does not use TLS".to_owned(),
        Some(other) => other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection in the TLS handshake: it may not trust the server's certificate".to_owned()
        }
        None => format!("its TLS handshake failed: {error}"),
    }
}

/// Describes the problem of a client's certificate.
fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is not signed by an authority in client_ca".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not one for clients (extendedKeyUsage)".to_owned()
        }
        other => format!("its certificate is refused: {other}"),
    }
}

/// Describes the alert that a client sent before it disconnected.
fn told(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        // The client knows an authority of the same name with another key.
        | AlertDescription::DecryptError => {
            format!("it does not trust the server's certificate (alert {alert:?})")
        }
        AlertDescription::CertificateExpired => {
            "it considers the server's certificate expired".to_owned()
        }
        other => format!("it ended the TLS handshake (alert {other:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_in_its_own_words() {
        let of = |error: Error| reason(&io::Error::new(io::ErrorKind::InvalidData, error));
        for (error, words) in [
            (Error::NoCertificatesPresented, "sent no certificate"),
            (CertificateError::Expired.into(), "has expired"),
            (
                CertificateError::UnknownIssuer.into(),
                "not signed by an authority in client_ca",
            ),
            (
                CertificateError::InvalidPurpose.into(),
                "not one for clients",
            ),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "does not trust",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateExpired),
                "server's certificate expired",
            ),
            (
                Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "not use TLS",
            ),
        ] {
            let told = of(error);
            assert!(told.contains(words), "{told}");
        }
        let gone = reason(&io::ErrorKind::UnexpectedEof.into());
        assert!(gone.contains("closed the connection"), "{gone}");
    }
}
