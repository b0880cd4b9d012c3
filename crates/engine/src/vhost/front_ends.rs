//! The front ends of a disk: one that runs, and at most one that waits for it to leave.
//!
//! The second is there for live migration on one host: the destination's QEMU connects while the source's guest still
//! runs, and starts its rings when the source's have stopped. The handle lets front ends in and sends them away; the
//! protocol's thread of each asks here before it starts a ring.
//!
//! One that has hung up still has the turn until all that it had in flight has ended. Whoever comes then, as a virtual
//! machine that is started anew does, waits for that and is not refused: nobody is there any more who could stop.
//!
//! # Always true
//! - rings of two front ends never run at the same time
//! - the turn passes on only when the last ring of its holder has stopped, and with it all that it had in flight
//! - nobody is refused, or kept out, for the sake of one that has gone; nobody who has gone himself waits
//!
//! # Picture
//! ```text
//! source       connected ── takes the turn ────────────── stops its rings ── leaves
//! destination                    connected ── is refused ─────── takes the turn ─────────
//!
//! the old one  connected ── takes the turn ── hangs up ── its I/O ends ── leaves
//! the new one                                   connected ── waits ────── takes the turn ─────────
//! ```

use super::channel::Channel;
use crate::sys::eventfd::EventFd;
use crate::sys::os;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One whose rings run, and one that is to take over from it. Those who have gone are not counted.
const MOST: usize = 2;

/// The front ends of one disk.
#[derive(Default)]
pub(crate) struct FrontEnds(Mutex<State>);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrontEndId(u64);

/// One that is connected; dropped when it is gone and its rings have stopped.
pub(crate) struct Stay<'a> {
    front_ends: &'a FrontEnds,
    pub(crate) id: FrontEndId,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.front_ends.leave(self.id);
    }
}

/// Why one is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many are connected as may be.
    Full,
    /// The disk is going away.
    Closed,
}

/// What one hears who asks for the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has it.
    Taken,
    /// Another one has it, and is still there.
    Anothers,
    /// The one that asked has gone before its turn came.
    TooLate,
}

#[derive(Default)]
struct State {
    connected: Vec<Connected>,
    /// Whose rings run, or are about to.
    turn: Option<FrontEndId>,
    /// What the guest chose of its cache, as the last holder of the turn knew; kept while anybody is connected.
    cache_choice: Option<bool>,
    closed: bool,
    next: u64,
}

struct Connected {
    id: FrontEndId,
    /// To send it away, and to see whether it has gone.
    socket: Arc<UnixStream>,
    /// How to tell it that the configuration has changed.
    channel: Option<Arc<Channel>>,
    /// Rung when the turn becomes free, if it ever waited for that.
    bell: Option<Arc<EventFd>>,
    /// We have ended it, though it may not have hung up.
    ended: bool,
}

impl Connected {
    /// Whether it has gone, and only what it had in flight is waited for. Its thread may not know yet.
    fn is_leaving(&self) -> bool {
        self.ended || os::has_hung_up(&self.socket)
    }
}

impl State {
    fn find(&mut self, id: FrontEndId) -> Option<&mut Connected> {
        self.connected.iter_mut().find(|one| one.id == id)
    }

    fn free_turn(&mut self, id: FrontEndId) {
        if self.turn == Some(id) {
            self.turn = None;
            for bell in self.connected.iter().flat_map(|one| &one.bell) {
                bell.signal();
            }
        }
    }
}

impl FrontEnds {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere while this is held leaves plain values that are still true.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one in whose socket is `socket`.
    pub(crate) fn enter(&self, socket: UnixStream) -> Result<Stay<'_>, Refusal> {
        let mut state = self.state();
        if state.closed {
            return Err(Refusal::Closed);
        }
        let there = state.connected.iter().filter(|one| !one.is_leaving());
        match there.count() {
            // Its guest is none that comes from another front end.
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
            bell: None,
            ended: false,
        });
        let front_ends = self;
        Ok(Stay { front_ends, id })
    }

    fn leave(&self, id: FrontEndId) {
        let mut state = self.state();
        state.connected.retain(|one| one.id != id);
        state.free_turn(id);
        if state.connected.is_empty() {
            state.cache_choice = None;
        }
    }

    /// Nothing more is heard of this one: whoever wants the turn that it may have waits for it.
    pub(crate) fn end(&self, id: FrontEndId) {
        if let Some(one) = self.state().find(id) {
            one.ended = true;
        }
    }

    /// Takes the turn to run rings, if it is free or this one's already. Waits where its holder has gone, until all that
    /// that one had in flight has ended.
    ///
    /// # Errors
    /// When there is no descriptor to wait with.
    pub(crate) fn take_turn(&self, id: FrontEndId) -> io::Result<Turn> {
        loop {
            let (socket, bell) = {
                let mut state = self.state();
                let holder = state.turn.filter(|holder| *holder != id);
                let Some(holder) = holder else {
                    state.turn = Some(id);
                    return Ok(Turn::Taken);
                };
                if state.find(holder).is_some_and(|one| !one.is_leaving()) {
                    return Ok(Turn::Anothers);
                }
                let Some(own) = state.find(id) else {
                    return Ok(Turn::TooLate);
                };
                let bell = match &own.bell {
                    Some(bell) => Arc::clone(bell),
                    None => Arc::new(EventFd::new()?),
                };
                own.bell = Some(Arc::clone(&bell));
                (Arc::clone(&own.socket), bell)
            };
            // Rung since we looked, it rings still.
            os::wait_for_bell(bell.as_raw_fd(), &socket)?;
            bell.drain();
            if os::has_hung_up(&socket) {
                return Ok(Turn::TooLate);
            }
        }
    }

    /// Whether it is this one's turn.
    pub(crate) fn has_turn(&self, id: FrontEndId) -> bool {
        self.state().turn == Some(id)
    }

    /// Gives the turn back: none of this one's rings runs any more.
    pub(crate) fn give_turn_back(&self, id: FrontEndId) {
        self.state().free_turn(id);
    }

    /// What the guest chose of its cache, for a front end that takes a guest over.
    pub(crate) fn cache_choice(&self) -> Option<bool> {
        self.state().cache_choice
    }

    /// Notes that, for one who may take the guest over later; heard from the holder of the turn only, while it is there.
    pub(crate) fn note_cache_choice(&self, id: FrontEndId, choice: Option<bool>) {
        let mut state = self.state();
        let holds = state.turn == Some(id);
        if holds && state.find(id).is_some_and(|one| !one.is_leaving()) {
            state.cache_choice = choice;
        }
    }

    /// Keeps the channel that one has sent.
    pub(crate) fn set_channel(&self, id: FrontEndId, channel: Channel) {
        let mut state = self.state();
        if let Some(one) = state.find(id) {
            one.channel = Some(Arc::new(channel));
        }
    }

    /// Tells one of them that the configuration may be another than it believes, if it has sent a channel.
    ///
    /// # Errors
    /// When it could not be told.
    pub(crate) fn tell(&self, id: FrontEndId) -> io::Result<()> {
        let channel = self.state().find(id).and_then(|one| one.channel.clone());
        channel.map_or(Ok(()), |channel| channel.config_changed())
    }

    /// Tells all of them that the configuration has changed; the errors of those that could not be told.
    pub(crate) fn config_changed(&self) -> Vec<io::Error> {
        let channels: Vec<Arc<Channel>> = {
            let state = self.state();
            let channels = state.connected.iter().flat_map(|one| &one.channel);
            channels.cloned().collect()
        };
        let told = channels.iter().map(|channel| channel.config_changed());
        told.filter_map(Result::err).collect()
    }

    /// Whether any is connected.
    pub(crate) fn any(&self) -> bool {
        !self.state().connected.is_empty()
    }

    /// Sends all of them away, and lets none in any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for one in &state.connected {
            // One that has gone by itself is as gone as it should be.
            let _ = one.socket.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
impl FrontEnds {
    /// Whether any waits, or waited, for one that had gone.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.state().connected.iter().any(|one| one.bell.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};
    use std::time::{Duration, Instant};

    /// How long a test waits before it fails: never reached unless something is stuck.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// One that has come, and its own end of the socket.
    fn entered(front_ends: &FrontEnds) -> (Stay<'_>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        (front_ends.enter(ours).expect("there is room"), theirs)
    }

    /// Those of a disk that is never freed, so that whoever waits for ever keeps a thread and not the test.
    fn front_ends() -> &'static FrontEnds {
        Box::leak(Box::default())
    }

    /// Asks for the turn on a thread of its own, and tells what it heard.
    fn asks(front_ends: &'static FrontEnds, id: FrontEndId) -> Receiver<Turn> {
        let (tell, heard) = channel();
        std::thread::spawn(move || tell.send(front_ends.take_turn(id).expect("descriptors")));
        heard
    }

    fn take_turn(front_ends: &'static FrontEnds, stay: &Stay<'_>) -> bool {
        let turn = asks(front_ends, stay.id).recv_timeout(PATIENCE);
        let turn = turn.expect("an answer, soon");
        assert_ne!(turn, Turn::TooLate, "it is there");
        turn == Turn::Taken
    }

    fn wait_until(what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < deadline, "in vain: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_second_has_its_turn_only_when_the_first_has_given_it_back() {
        let front_ends = front_ends();
        let (source, _its_end) = entered(front_ends);
        let (destination, _other_end) = entered(front_ends);
        assert!(take_turn(front_ends, &source));
        assert!(!take_turn(front_ends, &destination));
        assert!(take_turn(front_ends, &source), "it has the turn already");

        front_ends.give_turn_back(destination.id);
        assert!(
            !take_turn(front_ends, &destination),
            "it was not its to give"
        );
        front_ends.give_turn_back(source.id);
        assert!(take_turn(front_ends, &destination));
        assert!(!take_turn(front_ends, &source));
    }

    #[test]
    fn one_that_leaves_leaves_the_turn_behind() {
        let front_ends = front_ends();
        let (source, _its_end) = entered(front_ends);
        let (destination, _other_end) = entered(front_ends);
        assert!(take_turn(front_ends, &source));
        drop(source);
        assert!(take_turn(front_ends, &destination));
    }

    /// Has a new one come while the turn is that of `old`, of which nothing more will be heard, and has it wait until
    /// that one has left.
    fn waits_for(front_ends: &'static FrontEnds, old: Stay<'_>) {
        let (new, _its_end) = entered(front_ends);
        let heard = asks(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        assert_eq!(heard.try_recv(), Err(TryRecvError::Empty));
        drop(old);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(Turn::Taken));
    }

    #[test]
    fn who_comes_after_one_that_has_hung_up_waits_for_its_turn_and_is_not_refused() {
        let front_ends = front_ends();
        let (old, its_end) = entered(front_ends);
        assert!(take_turn(front_ends, &old));
        drop(its_end);
        waits_for(front_ends, old);
    }

    #[test]
    fn who_comes_after_one_that_was_hung_up_on_waits_for_its_turn_too() {
        let front_ends = front_ends();
        let (old, _its_end) = entered(front_ends);
        assert!(take_turn(front_ends, &old));
        front_ends.end(old.id);
        waits_for(front_ends, old);
    }

    #[test]
    fn one_that_hangs_up_while_it_waits_waits_no_more() {
        let front_ends = front_ends();
        let (old, old_end) = entered(front_ends);
        assert!(take_turn(front_ends, &old));
        drop(old_end);
        let (new, new_end) = entered(front_ends);
        let heard = asks(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        drop(new_end);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(Turn::TooLate));
        assert!(take_turn(front_ends, &old), "it is its turn still");
    }

    #[test]
    fn all_who_wait_are_sent_away_when_the_disk_goes() {
        let front_ends = front_ends();
        let (old, old_end) = entered(front_ends);
        assert!(take_turn(front_ends, &old));
        drop(old_end);
        let (new, _its_end) = entered(front_ends);
        let heard = asks(front_ends, new.id);
        wait_until("the new one waits", || front_ends.is_waited_for());
        front_ends.close();
        assert_eq!(heard.recv_timeout(PATIENCE), Ok(Turn::TooLate));
    }

    #[test]
    fn a_third_is_not_let_in_until_one_leaves() {
        let front_ends = front_ends();
        let (first, _first_end) = entered(front_ends);
        let _second = entered(front_ends);
        let (third, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.enter(third).err(), Some(Refusal::Full));
        drop(first);
        let _third = entered(front_ends);
    }

    #[test]
    fn those_who_have_gone_keep_nobody_out() {
        let front_ends = front_ends();
        let (_first, first_end) = entered(front_ends);
        let (second, _second_end) = entered(front_ends);
        drop(first_end);
        front_ends.end(second.id);
        let _there = (entered(front_ends), entered(front_ends));
        let (late, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.enter(late).err(), Some(Refusal::Full));
    }

    #[test]
    fn nobody_is_let_in_after_all_were_sent_away() {
        let front_ends = front_ends();
        let _first = entered(front_ends);
        front_ends.close();
        let (late, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.enter(late).err(), Some(Refusal::Closed));
    }

    #[test]
    fn what_the_guest_chose_of_its_cache_goes_with_it_and_no_further() {
        let front_ends = front_ends();
        let (source, _its_end) = entered(front_ends);
        let (destination, _other_end) = entered(front_ends);
        assert!(take_turn(front_ends, &source));
        front_ends.note_cache_choice(source.id, Some(false));
        front_ends.note_cache_choice(destination.id, Some(true));
        drop(source);
        assert_eq!(front_ends.cache_choice(), Some(false));
        drop(destination);
        assert_eq!(front_ends.cache_choice(), None);
    }

    #[test]
    fn who_comes_after_one_that_has_hung_up_has_another_guest() {
        let front_ends = front_ends();
        let (old, its_end) = entered(front_ends);
        assert!(take_turn(front_ends, &old));
        front_ends.note_cache_choice(old.id, Some(false));
        drop(its_end);
        let _new = entered(front_ends);
        assert_eq!(front_ends.cache_choice(), None);
        front_ends.note_cache_choice(old.id, Some(false));
        assert_eq!(front_ends.cache_choice(), None, "what it said last is late");
    }
}
