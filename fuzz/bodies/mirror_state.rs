//! Reads any bytes as the state of a mirror's member, and starts a mirror whose members have it.
//!
//! Input: what a state block has. Its last bytes, if there are more than a block's, are the other state of member 0.
//!
//! # Always true
//! - A state is read, or refused with a reason.
//! - What was read is written as the same block, but for bytes to which the format gives no meaning.
//! - A mirror opens whose members all have one state that says that they are in sync.
//! - A mirror over any states opens or refuses to, in a bounded number of steps, and never panics.

use super::sealed::{differences, sealed};
use tidegate_core::block::{BLOCK, Unreadable};
use tidegate_core::layout::Members;
use tidegate_core::layout::mirror::state::{HOT_MAX, State};
use world::{MIB, PLACES, World};

#[path = "../../crates/core/tests/mirror/world.rs"]
#[expect(dead_code, reason = "the tests of mirrors use more of it")]
mod world;

const DISK: [u8; 16] = [7; 16];
/// The disk that starts: a rebuild of it is a few hundred I/Os.
const SIZE: u64 = 16 * MIB;

/// Runs one input: as it is, and as a block with a right checksum.
pub(crate) fn run(input: &[u8]) {
    drop(check(input));
    match check(&sealed(input)) {
        Ok(state) => start(state, input.get(BLOCK..).unwrap_or_default()),
        Err(why) => assert_ne!(why, Unreadable::Short),
    }
}

fn check(bytes: &[u8]) -> Result<State, Unreadable> {
    let (state, member) = State::decode(bytes)?;
    assert!(member < state.members && state.in_sync != 0);
    assert!(state.regions.len() <= HOT_MAX);
    let again = state.encode(member);
    assert_eq!(State::decode(&again[..]), Ok((state.clone(), member)));
    let regions = 160 + 4 * state.regions.len();
    for at in differences(bytes, &again[..]) {
        let free = match at {
            10..16 | 50..56 | 136..160 => true,
            // Flags, and how far a rebuild is.
            49 => true,
            56..64 => state.syncing.is_none(),
            _ => at >= regions,
        };
        assert!(free, "byte {at} is lost");
    }
    Ok(state)
}

/// Starts a mirror whose members all have this state, and the first one another one too.
fn start(state: State, other: &[u8]) {
    if state.members < 2 {
        return;
    }
    let members = Members::new(DISK, SIZE, state.members.into());
    let mut world = World::over(members, 16);
    let state = State {
        disk: DISK,
        ..state
    };
    for member in 0..state.members {
        let block = state.encode(member);
        world.put_back(member, vec![(PLACES[0], block)]);
    }
    if !other.is_empty() {
        world.put_back(0, vec![(PLACES[1], Box::new(sealed(other)))]);
    }
    world.crash();
    assert!(world.opened.is_some(), "it opens or refuses to");
    let all = (1 << state.members) - 1;
    if other.is_empty() && state.in_sync == all && state.previous <= state.sequence {
        assert_eq!(world.opened, Some(Ok(())));
    }
    if world.opened == Some(Ok(())) {
        world.write(1, 0);
        world.finish_all();
        assert_eq!(world.answered(), [1]);
    }
}
