//! NBD URIs: parser and formatter.
//!
//! Users name an upstream server with them, and the daemon prints them as addresses of disks. Only the syntax is
//! checked here, not whether a server responds.
//!
//! # Source
//! The NBD URI specification (`doc/uri.md` of the NetworkBlockDevice project), without `nbd+vsock` and without
//! parameters for TLS, which are configuration here.

use crate::nbd::wire::STRING_MAX;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The port that IANA gave to NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// The address of a server and the name of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The server's address.
    pub endpoint: Endpoint,
    /// Whether to require TLS (`nbds`).
    pub tls: bool,
    /// The export's name; empty for the default one.
    pub export: String,
}

/// The address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A name or address (IPv6 without brackets) and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why a text is not an NBD URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriError {
    /// It does not begin with one of the four schemes.
    Scheme,
    /// The host is missing, or has a user before it.
    Host,
    /// The port is not a number from 1 to 65535.
    Port,
    /// A `nbd+unix` URI names a host, or lacks the parameter `socket`.
    Socket,
    /// An unknown parameter.
    Parameter,
    /// A `%` without two hexadecimal digits, or an escaped zero byte.
    Escape,
    /// The export's name is not UTF-8, or longer than the protocol allows.
    Export,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UriError::Scheme => "expected nbd://, nbds://, nbd+unix:// or nbds+unix://",
            UriError::Host => "expected a host after ://, as in nbd://host:10809/export",
            UriError::Port => "expected a port from 1 to 65535 after the host",
            UriError::Socket => "expected a socket, as in nbd+unix:///export?socket=/run/nbd.sock",
            UriError::Parameter => "the only supported parameter is socket= of nbd+unix://",
            UriError::Escape => {
                "% must be followed by two hexadecimal digits, and not be a zero byte"
            }
            UriError::Export => "the export's name must be UTF-8 of at most 4096 bytes",
        })
    }
}

impl std::error::Error for UriError {}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(UriError::Scheme),
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoint = match unix {
            true => unix_endpoint(authority, query)?,
            false if query.is_some_and(|query| !query.is_empty()) => {
                return Err(UriError::Parameter);
            }
            false => tcp_endpoint(authority)?,
        };
        let export = String::from_utf8(unescape(path)?).map_err(|_| UriError::Export)?;
        if export.len() > STRING_MAX {
            return Err(UriError::Export);
        }
        Ok(Uri {
            endpoint,
            tls,
            export,
        })
    }
}

fn unix_endpoint(authority: &str, query: Option<&str>) -> Result<Endpoint, UriError> {
    let (key, path) = query
        .and_then(|query| query.split_once('='))
        .ok_or(UriError::Socket)?;
    if key != "socket" || path.contains('&') {
        return Err(UriError::Parameter);
    }
    if !authority.is_empty() || path.is_empty() {
        return Err(UriError::Socket);
    }
    let path = unescape(path)?;
    if path.contains(&0) {
        return Err(UriError::Escape);
    }
    Ok(Endpoint::Unix(PathBuf::from(OsString::from_vec(path))))
}

fn tcp_endpoint(authority: &str) -> Result<Endpoint, UriError> {
    if authority.contains('@') {
        return Err(UriError::Host);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']').ok_or(UriError::Host)?;
            match after.strip_prefix(':') {
                None if !after.is_empty() => return Err(UriError::Port),
                port => (host, port),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(UriError::Port)?,
    };
    let host = String::from_utf8(unescape(host)?).map_err(|_| UriError::Escape)?;
    if host.is_empty() || host.contains('\0') {
        return Err(UriError::Host);
    }
    Ok(Endpoint::Tcp(host, port))
}

fn unescape(text: &str) -> Result<Vec<u8>, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (rest.next().and_then(hex), rest.next().and_then(hex));
                high.zip(low)
                    .map(|(high, low)| high << 4 | low)
                    .ok_or(UriError::Escape)?
            }
            plain => plain,
        });
    }
    Ok(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Display for Uri {
    /// Writes a text that parses to the same URI.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.endpoint {
            Endpoint::Tcp(host, port) => {
                write!(f, "{scheme}://")?;
                match host.contains(':') {
                    true => write!(f, "[{host}]")?,
                    false => escape(f, host.as_bytes(), b"")?,
                }
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
                f.write_str("/")?;
                escape(f, self.export.as_bytes(), b"/")
            }
            Endpoint::Unix(path) => {
                write!(f, "{scheme}+unix:///")?;
                escape(f, self.export.as_bytes(), b"/")?;
                f.write_str("?socket=")?;
                escape(f, path.as_os_str().as_bytes(), b"/")
            }
        }
    }
}

/// Writes the unreserved characters and those in `also` unchanged, and the rest as `%` and two digits.
fn escape(f: &mut fmt::Formatter<'_>, bytes: &[u8], also: &[u8]) -> fmt::Result {
    for byte in bytes {
        match byte {
            b'-' | b'.' | b'_' | b'~' => write!(f, "{}", char::from(*byte))?,
            byte if byte.is_ascii_alphanumeric() || also.contains(byte) => {
                write!(f, "{}", char::from(*byte))?;
            }
            byte => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        let endpoint = Endpoint::Tcp(host.to_owned(), port);
        Uri {
            endpoint,
            tls: false,
            export: export.to_owned(),
        }
    }

    #[test]
    fn a_tcp_uri_names_host_port_and_export() {
        assert_eq!("nbd://store".parse(), Ok(tcp("store", 10809, "")));
        assert_eq!("nbd://store/".parse(), Ok(tcp("store", 10809, "")));
        assert_eq!("nbd://store:99/a%20b".parse(), Ok(tcp("store", 99, "a b")));
        assert_eq!("nbd://[::1]:99/x/y".parse(), Ok(tcp("::1", 99, "x/y")));
        assert_eq!("nbd://[::1]/".parse(), Ok(tcp("::1", 10809, "")));
        let private = Uri {
            tls: true,
            ..tcp("store", 10809, "d")
        };
        assert_eq!("nbds://store/d".parse(), Ok(private));
    }

    #[test]
    fn a_unix_uri_names_its_socket() {
        let endpoint = Endpoint::Unix(PathBuf::from("/run/a b.sock"));
        let uri = Uri {
            endpoint,
            tls: false,
            export: "disk0".to_owned(),
        };
        assert_eq!(
            "nbd+unix:///disk0?socket=/run/a%20b.sock".parse(),
            Ok(uri.clone())
        );
        assert_eq!(uri.to_string(), "nbd+unix:///disk0?socket=/run/a%20b.sock");
    }

    #[test]
    fn an_invalid_uri_is_rejected_with_its_error() {
        for (text, error) in [
            ("", UriError::Scheme),
            ("http://store/", UriError::Scheme),
            ("nbd:///disk0", UriError::Host),
            ("nbd://user@store/", UriError::Host),
            ("nbd://[::1/", UriError::Host),
            ("nbd://[::1]x/", UriError::Port),
            ("nbd://store:0/", UriError::Port),
            ("nbd://store:65536/", UriError::Port),
            ("nbd://store/?socket=/x", UriError::Parameter),
            ("nbd+unix:///disk0", UriError::Socket),
            ("nbd+unix:///disk0?socket=", UriError::Socket),
            ("nbd+unix://store/disk0?socket=/x", UriError::Socket),
            ("nbd+unix:///disk0?path=/x", UriError::Parameter),
            ("nbd+unix:///disk0?socket=/x&tls=1", UriError::Parameter),
            ("nbd+unix:///disk0?socket=/x%00", UriError::Escape),
            ("nbd://store/%4", UriError::Escape),
            ("nbd://store/%zz", UriError::Escape),
            ("nbd://store/%ff", UriError::Export),
        ] {
            assert_eq!(text.parse::<Uri>(), Err(error), "{text}");
        }
        assert_eq!(
            format!("nbd://s/{}", "a".repeat(4097)).parse::<Uri>(),
            Err(UriError::Export)
        );
    }
}
