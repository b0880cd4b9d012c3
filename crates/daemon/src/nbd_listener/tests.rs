//! Tests of clients that connect and disconnect, of refused clients, and of the log lines about them.

use super::*;
use std::io::Write;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::config::plan::TlsFiles;
use crate::listen::tls;
use crate::observe::log::captured::Lines;

#[tokio::test]
async fn a_silent_tls_client_has_its_seat_until_it_is_closed_soon_after_its_disk_is_done() {
    let seats = Arc::new(Semaphore::new(1));
    let seat = Arc::new(Arc::clone(&seats).try_acquire_owned().unwrap());
    let (mut client, private) = tokio::io::duplex(4096);
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (served, done) = oneshot::channel();
    splice(private, theirs, seat, done, Duration::from_millis(20)).unwrap();
    ours.write_all(b"last words").unwrap();
    drop(ours);
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"last words");
    // The client does not close its end, and the daemon has freed nothing yet.
    assert_eq!(seats.available_permits(), 0);
    drop(served);
    let free = tokio::time::timeout(PATIENCE, seats.acquire()).await;
    assert!(free.is_ok(), "its seat is free again");
    assert!(client.write_all(b"hello?").await.is_err(), "it is closed");
}

#[tokio::test]
async fn a_tls_client_that_hangs_up_gives_its_seat_back_at_once() {
    let seats = Arc::new(Semaphore::new(1));
    let seat = Arc::new(Arc::clone(&seats).try_acquire_owned().unwrap());
    let (client, private) = tokio::io::duplex(4096);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (_served, done) = oneshot::channel();
    splice(private, theirs, seat, done, LINGER).unwrap();
    drop((client, ours));
    let free = tokio::time::timeout(PATIENCE, seats.acquire()).await;
    assert!(free.is_ok(), "its seat is free again");
}

#[tokio::test]
async fn a_tcp_client_that_vanishes_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    assert!(!sockopt::socket_keepalive(&socket).unwrap());
    keep_alive(&socket).unwrap();
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), SILENCE);
    assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), PROBE_EVERY);
    assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), PROBES);
}

/// Starts a TLS listener that admits clients of its own authority; returns its address.
async fn listener(files: &TlsFiles) -> std::net::SocketAddr {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let endpoint = Endpoint {
        socket: Listening::Tcp(socket),
        security: EndpointSecurity::Tls(tls::server(files).unwrap().acceptor),
    };
    tokio::spawn(attend(endpoint, ConnectionLimits::new(Arc::default(), 8)));
    address
}

/// Creates a self-signed certificate that serves as authority, server and client certificate.
fn files(folder: &Path) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    TlsFiles {
        client_ca: Some(certificate.clone()),
        certificate,
        key,
    }
}

const CLIENT_FLAGS: [u8; 4] = 3_u32.to_be_bytes();

/// An NBD option without data, as a client sends it.
fn option(number: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &[0; 4]].concat()
}

/// Requests TLS and performs its handshake, with or without a certificate; then waits until the server closes.
async fn knock_with_tls(address: std::net::SocketAddr, server: &TlsFiles, own: Option<&TlsFiles>) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.read_exact(&mut [0; 18]).await.unwrap();
    socket.write_all(&CLIENT_FLAGS).await.unwrap();
    socket.write_all(&option(5)).await.unwrap();
    socket.read_exact(&mut [0; 20]).await.unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&server.certificate).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_file(&own.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let shaken = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await;
    // In TLS 1.3 a client learns afterwards that it is refused. One that does not trust the server disconnects by
    // itself.
    if let Ok(mut private) = shaken {
        let _ = private.read(&mut [0; 1]).await;
    }
}

#[tokio::test]
async fn a_refused_client_is_told_of_once_with_its_reason_and_address() {
    let lines = Lines::default();
    let _log = lines.listen();
    let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let [ours, strange] = [0, 1].map(|nth: usize| files(folders[nth].path()));
    let address = listener(&ours).await;
    for _ in 0..3 {
        knock_with_tls(address, &ours, None).await;
        knock_with_tls(address, &ours, Some(&strange)).await;
        knock_with_tls(address, &strange, None).await;
        // Without TLS: requests structured replies, reads the reply, and disconnects.
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.read_exact(&mut [0; 18]).await.unwrap();
        socket.write_all(&CLIENT_FLAGS).await.unwrap();
        socket.write_all(&option(8)).await.unwrap();
        socket.read_exact(&mut [0; 20]).await.unwrap();
        drop(socket);
        // A client of another protocol.
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let _ = socket.read_to_end(&mut Vec::new()).await;
        // A port scan: connects and disconnects.
        drop(TcpStream::connect(address).await.unwrap());
    }
    let reasons = [
        "it sent no certificate",
        "its certificate is not signed by an authority in client_ca",
        "it does not trust the server's certificate",
        "it connected without TLS",
        "the client set flags that were not offered",
    ];
    let all_told = || reasons.iter().all(|reason| lines.text().contains(reason));
    let waiting = async {
        while !all_told() {
            tokio::task::yield_now().await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(told.is_ok(), "{}", lines.text());
    let text = lines.text();
    for reason in reasons {
        assert_eq!(text.matches(reason).count(), 1, "{text}");
    }
    assert_eq!(
        text.matches("an NBD client is refused").count(),
        reasons.len(),
        "{text}"
    );
    assert_eq!(text.matches("127.0.0.1:").count(), reasons.len(), "{text}");
}
