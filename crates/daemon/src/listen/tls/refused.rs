//! The reason why a TLS client was refused, for the log.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// The reason in the handshake's error.
pub(crate) fn reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::NoCertificatesPresented) => {
            "it showed no certificate, and client_ca asks for one".to_owned()
        }
        Some(Error::InvalidCertificate(why)) => certificate(why),
        Some(Error::AlertReceived(alert)) => told(*alert),
        Some(Error::PeerIncompatible(_) | Error::PeerMisbehaved(_)) => {
            format!("it speaks another TLS than 1.2 and 1.3: {error}")
        }
        Some(Error::InvalidMessage(_)) => "it speaks no TLS".to_owned(),
        Some(other) => other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it hung up in the TLS handshake: it may not trust the server's certificate".to_owned()
        }
        None => format!("its TLS handshake failed: {error}"),
    }
}

/// What is wrong with a client's certificate.
fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of no authority in client_ca".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not one for clients (extendedKeyUsage)".to_owned()
        }
        other => format!("its certificate is refused: {other}"),
    }
}

/// What a client says as it goes.
fn told(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        // Of an authority of the same name, with another key.
        | AlertDescription::DecryptError => {
            format!("it does not trust the server's certificate (alert {alert:?})")
        }
        AlertDescription::CertificateExpired => {
            "it says that the server's certificate has expired".to_owned()
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
            (Error::NoCertificatesPresented, "showed no certificate"),
            (CertificateError::Expired.into(), "has expired"),
            (
                CertificateError::UnknownIssuer.into(),
                "no authority in client_ca",
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
                "server's certificate has expired",
            ),
            (
                Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "no TLS",
            ),
        ] {
            let told = of(error);
            assert!(told.contains(words), "{told}");
        }
        let gone = reason(&io::ErrorKind::UnexpectedEof.into());
        assert!(gone.contains("hung up"), "{gone}");
    }
}
