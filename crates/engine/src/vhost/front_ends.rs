//! The front ends of a disk: one that owns the rings, and at most one that waits for it to leave.
//!
//! The second one exists for live migration on one host: the destination's QEMU connects while the source's guest still
//! runs, and starts its rings when the source's have stopped. The disk's handle admits front ends and disconnects them.
//! Each protocol thread acquires ownership here before it starts a ring.
//!
//! A disconnected front end still owns the rings until everything of it in flight has ended. A new one, such as a
//! restarted virtual machine, waits for that. It is not refused, because the old one can no longer stop its rings
//! itself.
//!
//! # Always true
//! - rings of two front ends never run at the same time
//! - ownership passes on only when the owner's last ring has stopped, and everything of it in flight has ended
//! - a disconnected front end causes no refusal, and does not itself wait
//!
//! # Picture
//! ```text
//! source       connected ── owns rings ────────────────── stops its rings ── leaves
//! destination                    connected ── is refused ─────── owns rings ─────────────
//!
//! the old one  connected ── owns rings ────── hangs up ── its I/O ends ── leaves
//! the new one                                   connected ── waits ────── owns rings ─────────────
//! ```

use super::channel::Channel;
use crate::sys::eventfd::EventFd;
use crate::sys::os;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One that owns the rings, and one that is to take over. Disconnected ones do not count.
const MOST: usize = 2;

/// The front ends of one disk.
#[derive(Default)]
pub(crate) struct FrontEnds(Mutex<State>);

/// A front end's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrontEndId(u64);

/// A connected front end; dropped when it is gone and its rings have stopped.
pub(crate) struct Registration<'a> {
    front_ends: &'a FrontEnds,
    pub(crate) id: FrontEndId,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.front_ends.unregister(self.id);
    }
}

/// Why a front end is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The maximum number is connected.
    Full,
    /// The disk is being detached.
    Closed,
}

/// The result of a request for the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The front end owns the rings.
    Acquired,
    /// Another one owns the rings, and is still connected.
    Busy,
    /// The front end has disconnected while it waited.
    Disconnected,
}

#[derive(Default)]
struct State {
    connected: Vec<Connected>,
    /// The owner of the rings.
    owner: Option<FrontEndId>,
    /// The guest's cache mode, as the last owner knew it; stored while any front end is connected.
    cache_choice: Option<bool>,
    closed: bool,
    next: u64,
}

struct Connected {
    id: FrontEndId,
    /// For disconnecting it, and for detecting its disconnection.
    socket: Arc<UnixStream>,
    /// For notifying it of a changed configuration.
    channel: Option<Arc<Channel>>,
    /// Signalled when the rings are released, if it ever waited for that.
    wakeup: Option<Arc<EventFd>>,
    /// The daemon has ended the connection, though the front end may still be there.
    ended: bool,
}

impl Connected {
    /// Whether it is gone, and only its requests in flight remain. Its thread may not know yet.
    fn is_leaving(&self) -> bool {
        self.ended || os::has_hung_up(&self.socket)
    }
}

impl State {
    fn find(&mut self, id: FrontEndId) -> Option<&mut Connected> {
        self.connected.iter_mut().find(|one| one.id == id)
    }

    fn free_rings(&mut self, id: FrontEndId) {
        if self.owner == Some(id) {
            self.owner = None;
            for wakeup in self.connected.iter().flat_map(|one| &one.wakeup) {
                wakeup.signal();
            }
        }
    }
}

impl FrontEnds {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid even if a holder of the lock panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a front end on this socket.
    pub(crate) fn register(&self, socket: UnixStream) -> Result<Registration<'_>, Refusal> {
        let mut state = self.state();
        if state.closed {
            return Err(Refusal::Closed);
        }
        let present = state.connected.iter().filter(|one| !one.is_leaving());
        match present.count() {
            // Its guest does not come from another front end.
            0 => state.cache_choice = None,
            MOST.. => return Err(Refusal::Full),
            _ => {}
        }
        let id = FrontEndId(state.next);
        state.next += 1;
        state.connected.push(Connected {
            id,
            socket: Arc::new(socket),
            channel: None,
            wakeup: None,
            ended: false,
        });
        let front_ends = self;
        Ok(Registration { front_ends, id })
    }

    fn unregister(&self, id: FrontEndId) {
        let mut state = self.state();
        state.connected.retain(|one| one.id != id);
        state.free_rings(id);
        if state.connected.is_empty() {
            state.cache_choice = None;
        }
    }

    /// The front end sends nothing more: others may now wait for its rings.
    pub(crate) fn end(&self, id: FrontEndId) {
        if let Some(one) = self.state().find(id) {
            one.ended = true;
        }
    }

    /// Acquires the rings, if they are free or owned already. If their owner is disconnected, waits until everything of
    /// it in flight has ended.
    ///
    /// # Errors
    /// If there is no descriptor to wait with.
    pub(crate) fn acquire_rings(&self, id: FrontEndId) -> io::Result<Ownership> {
        loop {
            let (socket, wakeup) = {
                let mut state = self.state();
                let owner = state.owner.filter(|owner| *owner != id);
                let Some(owner) = owner else {
                    state.owner = Some(id);
                    return Ok(Ownership::Acquired);
                };
                if state.find(owner).is_some_and(|one| !one.is_leaving()) {
                    return Ok(Ownership::Busy);
                }
                let Some(own) = state.find(id) else {
                    return Ok(Ownership::Disconnected);
                };
                let wakeup = match &own.wakeup {
                    Some(wakeup) => Arc::clone(wakeup),
                    None => Arc::new(EventFd::new()?),
                };
                own.wakeup = Some(Arc::clone(&wakeup));
                (Arc::clone(&own.socket), wakeup)
            };
            // A signal since the check is still pending.
            os::wait_for_wakeup(wakeup.as_raw_fd(), &socket)?;
            wakeup.drain();
            if os::has_hung_up(&socket) {
                return Ok(Ownership::Disconnected);
            }
        }
    }

    /// Whether this front end owns the rings.
    pub(crate) fn owns_rings(&self, id: FrontEndId) -> bool {
        self.state().owner == Some(id)
    }

    /// Releases the rings: none of this front end's rings runs any more.
    pub(crate) fn release_rings(&self, id: FrontEndId) {
        self.state().free_rings(id);
    }

    /// The guest's cache mode, for a front end that takes the guest over.
    pub(crate) fn cache_choice(&self) -> Option<bool> {
        self.state().cache_choice
    }

    /// Stores the cache mode for a front end that may take the guest over. Only a connected owner of the rings may set
    /// it.
    pub(crate) fn note_cache_choice(&self, id: FrontEndId, choice: Option<bool>) {
        let mut state = self.state();
        let owns = state.owner == Some(id);
        if owns && state.find(id).is_some_and(|one| !one.is_leaving()) {
            state.cache_choice = choice;
        }
    }

    /// Stores the channel of a front end.
    pub(crate) fn set_channel(&self, id: FrontEndId, channel: Channel) {
        let mut state = self.state();
        if let Some(one) = state.find(id) {
            one.channel = Some(Arc::new(channel));
        }
    }

    /// Notifies a front end that the configuration may have changed, if it has a channel.
    ///
    /// # Errors
    /// If it could not be notified.
    pub(crate) fn notify(&self, id: FrontEndId) -> io::Result<()> {
        let channel = self.state().find(id).and_then(|one| one.channel.clone());
        channel.map_or(Ok(()), |channel| channel.config_changed())
    }

    /// Notifies all front ends that the configuration has changed; returns the errors.
    pub(crate) fn config_changed(&self) -> Vec<io::Error> {
        let channels: Vec<Arc<Channel>> = {
            let state = self.state();
            let channels = state.connected.iter().flat_map(|one| &one.channel);
            channels.cloned().collect()
        };
        let results = channels.iter().map(|channel| channel.config_changed());
        results.filter_map(Result::err).collect()
    }

    /// Whether any is connected.
    pub(crate) fn any(&self) -> bool {
        !self.state().connected.is_empty()
    }

    /// Disconnects all front ends, and admits no more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for one in &state.connected {
            // A disconnected socket is no error.
            let _ = one.socket.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
impl FrontEnds {
    /// Whether any front end waits, or waited, for a disconnected one.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.state()
            .connected
            .iter()
            .any(|one| one.wakeup.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};
    use std::time::{Duration, Instant};

    /// Deadline of a test that waits.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// An admitted front end, and its end of the socket.
    fn connect(front_ends: &FrontEnds) -> (Registration<'_>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (front_ends.register(ours).expect("there is room"), theirs)
    }

    /// The front ends of a disk that is never freed, so that a blocked thread does not block the test.
    fn front_ends() -> &'static FrontEnds {
        Box::leak(Box::default())
    }

    /// Requests the rings on another thread; returns the result's channel.
    fn request(front_ends: &'static FrontEnds, id: FrontEndId) -> Receiver<Ownership> {
        let (sender, result) = channel();
        std::thread::spawn(move || sender.send(front_ends.acquire_rings(id).expect("descriptors")));
        result
    }

    fn acquire_rings(front_ends: &'static FrontEnds, registration: &Registration<'_>) -> bool {
        let ownership = request(front_ends, registration.id).recv_timeout(PATIENCE);
        let ownership = ownership.expect("an answer in time");
        assert_ne!(ownership, Ownership::Disconnected, "it is still connected");
        ownership == Ownership::Acquired
    }

    fn wait_until(what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < deadline, "timed out waiting until {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_second_front_end_owns_the_rings_after_the_first_released_them() {
        let front_ends = front_ends();
        let (source, _its_end) = connect(front_ends);
        let (destination, _other_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &source));
        assert!(!acquire_rings(front_ends, &destination));
        assert!(
            acquire_rings(front_ends, &source),
            "it owns the rings already"
        );

        front_ends.release_rings(destination.id);
        assert!(
            !acquire_rings(front_ends, &destination),
            "the destination did not own them"
        );
        front_ends.release_rings(source.id);
        assert!(acquire_rings(front_ends, &destination));
        assert!(!acquire_rings(front_ends, &source));
    }

    #[test]
    fn a_front_end_that_leaves_releases_the_rings() {
        let front_ends = front_ends();
        let (source, _its_end) = connect(front_ends);
        let (destination, _other_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &source));
        drop(source);
        assert!(acquire_rings(front_ends, &destination));
    }

    /// Connects a new front end while `old`, which sends nothing more, owns the rings. It must wait until `old` has
    /// left.
    fn waits_for(front_ends: &'static FrontEnds, old: Registration<'_>) {
        let (new, _its_end) = connect(front_ends);
        let result = request(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        assert_eq!(result.try_recv(), Err(TryRecvError::Empty));
        drop(old);
        assert_eq!(result.recv_timeout(PATIENCE), Ok(Ownership::Acquired));
    }

    #[test]
    fn a_front_end_after_a_disconnected_one_waits_and_is_not_refused() {
        let front_ends = front_ends();
        let (old, its_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &old));
        drop(its_end);
        waits_for(front_ends, old);
    }

    #[test]
    fn a_front_end_after_an_ended_one_waits_too() {
        let front_ends = front_ends();
        let (old, _its_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &old));
        front_ends.end(old.id);
        waits_for(front_ends, old);
    }

    #[test]
    fn a_waiting_front_end_that_disconnects_stops_waiting() {
        let front_ends = front_ends();
        let (old, old_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &old));
        drop(old_end);
        let (new, new_end) = connect(front_ends);
        let result = request(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        drop(new_end);
        assert_eq!(result.recv_timeout(PATIENCE), Ok(Ownership::Disconnected));
        assert!(
            acquire_rings(front_ends, &old),
            "the old one still owns the rings"
        );
    }

    #[test]
    fn a_detach_disconnects_waiting_front_ends() {
        let front_ends = front_ends();
        let (old, old_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &old));
        drop(old_end);
        let (new, _its_end) = connect(front_ends);
        let result = request(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        front_ends.close();
        assert_eq!(result.recv_timeout(PATIENCE), Ok(Ownership::Disconnected));
    }

    #[test]
    fn a_third_front_end_is_admitted_after_one_left() {
        let front_ends = front_ends();
        let (first, _first_end) = connect(front_ends);
        let _second = connect(front_ends);
        let (third, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.register(third).err(), Some(Refusal::Full));
        drop(first);
        let _third = connect(front_ends);
    }

    #[test]
    fn disconnected_front_ends_do_not_count() {
        let front_ends = front_ends();
        let (_first, first_end) = connect(front_ends);
        let (second, _second_end) = connect(front_ends);
        drop(first_end);
        front_ends.end(second.id);
        let _present = (connect(front_ends), connect(front_ends));
        let (late, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.register(late).err(), Some(Refusal::Full));
    }

    #[test]
    fn no_front_end_is_admitted_after_a_close() {
        let front_ends = front_ends();
        let _first = connect(front_ends);
        front_ends.close();
        let (late, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.register(late).err(), Some(Refusal::Closed));
    }

    #[test]
    fn the_cache_mode_follows_a_guest_to_its_next_front_end_only() {
        let front_ends = front_ends();
        let (source, _its_end) = connect(front_ends);
        let (destination, _other_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &source));
        front_ends.note_cache_choice(source.id, Some(false));
        front_ends.note_cache_choice(destination.id, Some(true));
        drop(source);
        assert_eq!(front_ends.cache_choice(), Some(false));
        drop(destination);
        assert_eq!(front_ends.cache_choice(), None);
    }

    #[test]
    fn a_front_end_after_a_disconnected_one_has_another_guest() {
        let front_ends = front_ends();
        let (old, its_end) = connect(front_ends);
        assert!(acquire_rings(front_ends, &old));
        front_ends.note_cache_choice(old.id, Some(false));
        drop(its_end);
        let _new = connect(front_ends);
        assert_eq!(front_ends.cache_choice(), None);
        front_ends.note_cache_choice(old.id, Some(false));
        assert_eq!(
            front_ends.cache_choice(),
            None,
            "a disconnected owner sets no mode"
        );
    }
}
