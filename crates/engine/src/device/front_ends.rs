//! Who speaks vhost-user to a disk: one front end whose rings run, and at most one more that waits for its turn.
//!
//! The second is there for live migration on one host: the destination's QEMU connects while the source's guest still
//! runs, and starts its rings when the source's have stopped. The handle lets front ends in and sends them away; the
//! protocol's thread of each asks here before it starts a ring.
//!
//! # Always true
//! - rings of two front ends never run at the same time
//! - the turn passes on only when the last ring of its holder has stopped, and with it all that it had in flight
//!
//! # Picture
//! ```text
//! source       connected ── takes the turn ────────────── stops its rings ── leaves
//! destination                    connected ── is refused ─────── takes the turn ─────────
//! ```

use super::channel::Channel;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One whose rings run, and one that is to take over from it.
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
    /// To send it away.
    socket: UnixStream,
    /// How to tell it that the configuration has changed.
    channel: Option<Arc<Channel>>,
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
        if state.connected.len() >= MOST {
            return Err(Refusal::Full);
        }
        let id = FrontEndId(state.next);
        state.next += 1;
        state.connected.push(Connected {
            id,
            socket,
            channel: None,
        });
        let front_ends = self;
        Ok(Stay { front_ends, id })
    }

    fn leave(&self, id: FrontEndId) {
        let mut state = self.state();
        state.connected.retain(|one| one.id != id);
        if state.turn == Some(id) {
            state.turn = None;
        }
        if state.connected.is_empty() {
            state.cache_choice = None;
        }
    }

    /// Takes the turn to run rings; whether it is free or this one's already.
    pub(crate) fn take_turn(&self, id: FrontEndId) -> bool {
        let mut state = self.state();
        let mine = state.turn.is_none_or(|holder| holder == id);
        if mine {
            state.turn = Some(id);
        }
        mine
    }

    /// Whether it is this one's turn.
    pub(crate) fn has_turn(&self, id: FrontEndId) -> bool {
        self.state().turn == Some(id)
    }

    /// Gives the turn back: none of this one's rings runs any more.
    pub(crate) fn give_turn_back(&self, id: FrontEndId) {
        let mut state = self.state();
        if state.turn == Some(id) {
            state.turn = None;
        }
    }

    /// What the guest chose of its cache, for a front end that takes a guest over.
    pub(crate) fn cache_choice(&self) -> Option<bool> {
        self.state().cache_choice
    }

    /// Notes that, for one who may take the guest over later; heard from the holder of the turn only.
    pub(crate) fn note_cache_choice(&self, id: FrontEndId, choice: Option<bool>) {
        let mut state = self.state();
        if state.turn == Some(id) {
            state.cache_choice = choice;
        }
    }

    /// Keeps the channel that one has sent.
    pub(crate) fn set_channel(&self, id: FrontEndId, channel: Channel) {
        let mut state = self.state();
        if let Some(one) = state.connected.iter_mut().find(|one| one.id == id) {
            one.channel = Some(Arc::new(channel));
        }
    }

    /// Tells all of them that the configuration has changed; the errors of those that could not be told.
    pub(crate) fn config_changed(&self) -> Vec<std::io::Error> {
        let channels: Vec<Arc<Channel>> = {
            let state = self.state();
            let channels = state.connected.iter().flat_map(|one| &one.channel);
            channels.cloned().collect()
        };
        // One that does not read holds up who tells it, but nobody's turn.
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
mod tests {
    use super::*;

    fn entered(front_ends: &FrontEnds) -> Stay<'_> {
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        front_ends.enter(ours).expect("there is room")
    }

    #[test]
    fn the_second_has_its_turn_only_when_the_first_has_given_it_back() {
        let front_ends = FrontEnds::default();
        let (source, destination) = (entered(&front_ends), entered(&front_ends));
        assert!(front_ends.take_turn(source.id));
        assert!(!front_ends.take_turn(destination.id));
        assert!(front_ends.take_turn(source.id), "it has the turn already");

        front_ends.give_turn_back(destination.id);
        assert!(
            !front_ends.take_turn(destination.id),
            "it was not its to give"
        );
        front_ends.give_turn_back(source.id);
        assert!(front_ends.take_turn(destination.id));
        assert!(!front_ends.take_turn(source.id));
    }

    #[test]
    fn one_that_leaves_leaves_the_turn_behind() {
        let front_ends = FrontEnds::default();
        let (source, destination) = (entered(&front_ends), entered(&front_ends));
        assert!(front_ends.take_turn(source.id));
        drop(source);
        assert!(front_ends.take_turn(destination.id));
    }

    #[test]
    fn a_third_is_not_let_in_until_one_leaves() {
        let front_ends = FrontEnds::default();
        let first = entered(&front_ends);
        let _second = entered(&front_ends);
        let (third, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.enter(third).err(), Some(Refusal::Full));
        drop(first);
        let _third = entered(&front_ends);
    }

    #[test]
    fn nobody_is_let_in_after_all_were_sent_away() {
        let front_ends = FrontEnds::default();
        let _first = entered(&front_ends);
        front_ends.close();
        let (late, _theirs) = UnixStream::pair().expect("sockets");
        assert_eq!(front_ends.enter(late).err(), Some(Refusal::Closed));
    }

    #[test]
    fn what_the_guest_chose_of_its_cache_goes_with_it_and_no_further() {
        let front_ends = FrontEnds::default();
        let (source, destination) = (entered(&front_ends), entered(&front_ends));
        assert!(front_ends.take_turn(source.id));
        front_ends.note_cache_choice(source.id, Some(false));
        front_ends.note_cache_choice(destination.id, Some(true));
        drop(source);
        assert_eq!(front_ends.cache_choice(), Some(false));
        drop(destination);
        assert_eq!(front_ends.cache_choice(), None);
    }
}
