//! Tests of detaches that take too long: the disk's name stays taken, and errors say so, until its I/O in flight ends.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};

use tidegate_api::disk::ClientKind;

use super::*;
use crate::host::nbd::{Handshake, Negotiated, Step, Tls};

/// Never reached unless something hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const WRITE: u16 = 1;

/// The head of a request: its command, cookie, offset and length.
type Head = (u16, [u8; 8], u64, u32);

fn head_of(stream: &mut UnixStream) -> Option<Head> {
    let mut head = [0; 28];
    stream.read_exact(&mut head).ok()?;
    let command = u16::from_be_bytes(head[6..8].try_into().unwrap());
    let cookie = head[8..16].try_into().unwrap();
    let offset = u64::from_be_bytes(head[16..24].try_into().unwrap());
    let len = u32::from_be_bytes(head[24..].try_into().unwrap());
    Some((command, cookie, offset, len))
}

/// An NBD server of a few bytes. It does not answer its first client's requests until that connection is closed.
struct Upstream {
    uri: String,
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Receives the first connection when a request has arrived on it.
    silent: Receiver<UnixStream>,
}

impl Upstream {
    fn start(place: &Path) -> Upstream {
        let path = place.join("upstream.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let bytes = Arc::new(Mutex::new(vec![0; 8192]));
        let (tell, silent) = channel();
        let kept = Arc::clone(&bytes);
        std::thread::spawn(move || {
            let mut clients = listener.incoming().map_while(Result::ok);
            let mut first = clients.next().unwrap();
            agree(&mut first);
            let tell_once = tell.clone();
            std::thread::spawn(move || {
                let own = first.try_clone().unwrap();
                head_of(&mut first).unwrap();
                tell_once.send(own)
            });
            for mut client in clients {
                let kept = Arc::clone(&kept);
                agree(&mut client);
                std::thread::spawn(move || serve(client, &kept));
            }
        });
        Upstream {
            uri: format!("nbd+unix://?socket={}", path.display()),
            bytes,
            silent,
        }
    }

    fn byte(&self) -> u8 {
        self.bytes.lock().unwrap()[0]
    }
}

fn agree(stream: &mut UnixStream) {
    let mut handshake = Handshake::new(Tls::Off);
    let mut input = Vec::new();
    loop {
        let mut out = Vec::new();
        let (used, step) = handshake.advance(&input, &mut out);
        input.drain(..used);
        if let Step::Lookup(name) = &step {
            use crate::host::nbd::{Abilities, ExportInfo};
            let export = ExportInfo {
                name: name.clone(),
                size: SIZE,
                abilities: Abilities::HAS_FLAGS.with(Abilities::FLUSH),
                ..Default::default()
            };
            handshake.found(Ok(export), &mut out);
        }
        stream.write_all(&out).unwrap();
        match step {
            Step::Lookup(_) => {}
            Step::Finished(_) => return,
            _ => {
                let mut bytes = [0; 4096];
                let got = stream.read(&mut bytes).unwrap();
                input.extend_from_slice(&bytes[..got]);
            }
        }
    }
}

/// Stores writes, and answers every request except reads at once.
fn serve(mut stream: UnixStream, kept: &Mutex<Vec<u8>>) {
    while let Some((command, cookie, offset, len)) = head_of(&mut stream) {
        if command == WRITE {
            let mut payload = vec![0; len as usize];
            stream.read_exact(&mut payload).unwrap();
            let at = usize::try_from(offset).unwrap();
            kept.lock().unwrap()[at..at + payload.len()].copy_from_slice(&payload);
        }
        let mut chunk = 0x668e_33ef_u32.to_be_bytes().to_vec();
        chunk.extend([0, 1, 0, 0]);
        chunk.extend(cookie);
        chunk.extend([0; 4]);
        let _ = stream.write_all(&chunk);
    }
}

/// A client of an attached disk that has sent a write of this byte over the first block.
fn writing(stage: &Stage, disk: &str, byte: u8) -> UnixStream {
    let live = stage.disk_service.live.get(&name(disk)).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let negotiated = Negotiated {
        bitmaps: Vec::new(),
        export: live.export_info(),
        structured: false,
        context: None,
    };
    let seat = Box::new(());
    live.serve_nbd(ours.into(), &negotiated, ClientKind::Nbd, "a test", seat)
        .unwrap();
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0]);
    request.extend(WRITE.to_be_bytes());
    request.extend([0; 16]);
    request.extend(512_u32.to_be_bytes());
    request.extend([byte; 512]);
    theirs.write_all(&request).unwrap();
    theirs
}

#[test]
fn a_disk_whose_detach_gave_up_cannot_be_attached_until_its_old_write_has_ended() {
    let mut stage = stage();
    let upstream = Upstream::start(stage.place.path());
    let settings = DatastoreSettings::Nbd {
        uri: upstream.uri.clone(),
    };
    stage
        .disk_service
        .add_datastore(&name("up"), settings)
        .unwrap();
    stage.disk_on("up", "a");
    stage.attach("a", Outside::Agreed).unwrap();
    let _client = writing(&stage, "a", 1);
    let silent = upstream.silent.recv_timeout(PATIENCE).unwrap();

    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.parting = Duration::from_millis(50);
    let detach = || stage.disk_service.detach(&name("a"), Clients::Disconnect);
    for _ in 0..2 {
        let late = detach().unwrap_err();
        assert_eq!(late.code, ProblemCode::Datastore, "{late}");
        let text = late.to_string();
        assert!(text.contains("still being detached"), "{text}");
        assert!(text.contains("datastore up does not respond"), "{text}");
    }
    // A query about the disk does not advise attaching it.
    let told = stage
        .disk_service
        .must_be_attached(&name("a"))
        .err()
        .unwrap();
    assert!(told.to_string().contains("still being detached"), "{told}");
    assert!(told.remedy.unwrap().contains("tidegate disk detach a"));
    // The name is taken for every command.
    let refusals = [
        stage.attach("a", Outside::Agreed).map(drop).unwrap_err(),
        stage.disk_service.delete(&name("a")).unwrap_err(),
        stage
            .disk_service
            .remove_datastore(&name("up"))
            .unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(
            refused.to_string().contains("still being detached"),
            "{refused}"
        );
    }
    let shown = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(
        (shown.wanted, shown.attached, shown.detaching),
        (false, false, true)
    );
    assert!(shown.problem.is_some());
    assert_eq!(stage.disk_service.troubles().len(), 1);

    // The upstream disconnects: the old write is sent again, and ends. Only then can newer writes be served.
    silent.shutdown(std::net::Shutdown::Both).unwrap();
    stage
        .disk_service
        .claims
        .wait_for_detach(&name("a"), PATIENCE)
        .unwrap();
    assert_eq!(upstream.byte(), 1);
    let shown = detach().unwrap();
    assert!(!shown.detaching && shown.problem.is_none());
    assert!(stage.disk_service.troubles().is_empty());
    stage.attach("a", Outside::Agreed).unwrap();
    let mut client = writing(&stage, "a", 2);
    client.read_exact(&mut [0; 16]).unwrap();
    drop(client);
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.parting = PATIENCE;
    assert_eq!(stage.disk_service.detach_all(), 0);
    assert_eq!(upstream.byte(), 2, "nothing older was written over it");
}

#[test]
fn a_detach_that_does_not_end_before_the_daemon_does_is_counted() {
    let mut stage = stage();
    let upstream = Upstream::start(stage.place.path());
    let settings = DatastoreSettings::Nbd {
        uri: upstream.uri.clone(),
    };
    stage
        .disk_service
        .add_datastore(&name("up"), settings)
        .unwrap();
    stage.disk_on("up", "a");
    stage.attach("a", Outside::Agreed).unwrap();
    let _client = writing(&stage, "a", 1);
    let silent = upstream.silent.recv_timeout(PATIENCE).unwrap();
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.parting = Duration::from_millis(50);
    // Once on its own, and again while the first detach is still in progress.
    assert_eq!(stage.disk_service.detach_all(), 1);
    assert_eq!(stage.disk_service.detach_all(), 1);
    silent.shutdown(std::net::Shutdown::Both).unwrap();
    stage
        .disk_service
        .claims
        .wait_for_detach(&name("a"), PATIENCE)
        .unwrap();
    assert_eq!(stage.disk_service.detach_all(), 0);
}

#[test]
fn two_disks_on_one_export_are_not_attached_while_one_writes_or_is_still_being_detached() {
    let mut stage = stage();
    let upstream = Upstream::start(stage.place.path());
    for datastore in ["up", "same"] {
        let settings = DatastoreSettings::Nbd {
            uri: upstream.uri.clone(),
        };
        let added = stage.disk_service.add_datastore(&name(datastore), settings);
        added.unwrap();
    }
    stage.disk_on("up", "a");
    let mut second = DiskCreate::new(name("b"), SIZE);
    second.datastore = Some(name("same"));
    second.export = Some("a".to_owned());
    stage.disk_service.create(&second).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let refused = || {
        let refused = stage.attach("b", Outside::Agreed).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        assert!(refused.to_string().contains("the same export"), "{refused}");
        stage.attach_read_only("b").unwrap_err();
    };
    refused();
    let _client = writing(&stage, "a", 1);
    let silent = upstream.silent.recv_timeout(PATIENCE).unwrap();
    let detached = |stage: &Stage| stage.disk_service.detach(&name("a"), Clients::Disconnect);
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.parting = Duration::from_millis(50);
    detached(&stage).unwrap_err();
    // Its write may still be sent again.
    stage.attach("b", Outside::Agreed).unwrap_err();
    silent.shutdown(std::net::Shutdown::Both).unwrap();
    let claims = &stage.disk_service.claims;
    claims.wait_for_detach(&name("a"), PATIENCE).unwrap();
    stage.attach("b", Outside::Agreed).unwrap();
    let disk_service = Arc::get_mut(&mut stage.disk_service).expect("nobody else has it");
    disk_service.parting = PATIENCE;
    assert_eq!(stage.disk_service.detach_all(), 0);
}
