//! The state of a policy as bytes: the parameters in use, the figures of the candidates, and the ghosts.
//!
//! The daemon stores it, so that the next use of the disk goes on from there. Its loss costs hits, and nothing else.
//! The file that it is in has a checksum, and says which disk and which cache it is of.
//!
//! # Always true
//! - bytes that are no such state change nothing
//! - parameters count only if they are a candidate's now, and figures only if all candidates are the same
//! - ghosts have no numbers of pages, but hashes. Those of a larger disk are dropped
//!
//! # Picture, little-endian
//! ```text
//!   0 version u8   1 parameters in use 19, zero if they are given   20 size of the disk u64   28 candidates u8
//!  29 for each: parameters 19, sub-blocks accessed u64, hit u64, written to flash u64
//!   . ghosts
//! ```

use super::ghosts::Ghosts;
use super::{CANDIDATES, Figures, Params, Policy, Shadows};
use alloc::vec::Vec;

const VERSION: u8 = 1;
const PARAMS: usize = Params::ENCODED;
const HEAD: usize = 1 + PARAMS + 8 + 1;
const CANDIDATE: usize = PARAMS + 3 * 8;
/// The most candidates of another version that are read.
const MOST_CANDIDATES: usize = 64;
/// A figure is smaller, so that products do not overflow.
const MOST_FIGURE: u64 = 1 << 48;

/// Whether a part of a state was the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// Call again for the next one.
    Part,
    /// It was.
    All,
}

/// Bytes that are not the state of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadState;

/// A state, as it is read.
struct State<'a> {
    in_use: [u8; PARAMS],
    size: u64,
    candidates: Vec<([u8; PARAMS], Figures)>,
    ghosts: &'a [u8],
}

/// Whether these bytes are the state of a policy.
///
/// # Errors
/// They are not, or of a version that this program does not know.
pub fn check_state(bytes: &[u8]) -> Result<(), BadState> {
    let state = State::read(bytes).ok_or(BadState)?;
    Ghosts::is_export(state.ghosts)
        .then_some(())
        .ok_or(BadState)
}

/// Appends the next part of the state to what there is of it: some `most` bytes. The disk has so many bytes.
pub(in super::super) fn export(
    policy: &Policy,
    shadows: Option<&Shadows>,
    size: u64,
    most: usize,
    out: &mut Vec<u8>,
) -> Exported {
    let candidates = if shadows.is_some() {
        CANDIDATES.len()
    } else {
        0
    };
    let ghosts_at = HEAD + candidates * CANDIDATE;
    if out.len() < ghosts_at {
        let (in_use, figures) = match shadows.map(Shadows::learned) {
            Some((candidate, figures)) => (CANDIDATES[candidate].encode(), figures),
            None => ([0; PARAMS], [Figures::default(); CANDIDATES.len()]),
        };
        out.clear();
        out.push(VERSION);
        out.extend(in_use);
        out.extend(size.to_le_bytes());
        out.push(u8::try_from(candidates).expect("few candidates"));
        for (params, figures) in CANDIDATES.iter().zip(figures).take(candidates) {
            out.extend(params.encode());
            let words = [figures.accessed, figures.hits, figures.flash];
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
    }
    match policy.ghosts.export(ghosts_at, most, out) {
        true => Exported::All,
        false => Exported::Part,
    }
}

/// Goes on from a state. The cache may have another number of slots. Nothing is in it yet. The disk has so many bytes.
///
/// # Errors
/// These bytes are not a state. Nothing has changed.
pub(in super::super) fn import(
    policy: &mut Policy,
    shadows: Option<&mut Shadows>,
    size: u64,
    bytes: &[u8],
) -> Result<(), BadState> {
    let state = State::read(bytes).ok_or(BadState)?;
    if !Ghosts::is_export(state.ghosts) {
        return Err(BadState);
    }
    if state.size <= size {
        policy
            .import_ghosts(state.ghosts)
            .expect("they were checked");
    }
    let place = |wanted: &[u8; PARAMS]| CANDIDATES.iter().position(|it| it.encode() == *wanted);
    if let (Some(shadows), Some(candidate)) = (shadows, place(&state.in_use)) {
        let is_same = |(it, (params, _)): (&Params, &([u8; PARAMS], _))| it.encode() == *params;
        let are_same = state.candidates.len() == CANDIDATES.len()
            && CANDIDATES.iter().zip(&state.candidates).all(is_same);
        let mut figures = [Figures::default(); CANDIDATES.len()];
        if are_same {
            for (figures, (_, stored)) in figures.iter_mut().zip(&state.candidates) {
                *figures = *stored;
            }
        }
        shadows.resume(candidate, figures);
        policy.set_params(*shadows.params());
    }
    Ok(())
}

impl State<'_> {
    fn read(bytes: &[u8]) -> Option<State<'_>> {
        let (&[version], rest) = bytes.split_first_chunk::<1>()?;
        let (in_use, rest) = rest.split_first_chunk::<PARAMS>()?;
        let (size, rest) = rest.split_first_chunk::<8>()?;
        let (&[count], mut rest) = rest.split_first_chunk::<1>()?;
        if version != VERSION || usize::from(count) > MOST_CANDIDATES {
            return None;
        }
        let mut candidates = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (params, after) = rest.split_first_chunk::<PARAMS>()?;
            let (words, after) = after.split_first_chunk::<24>()?;
            let (words, _) = words.as_chunks::<8>();
            let word = |nth: usize| words.get(nth).map(|word| u64::from_le_bytes(*word));
            let figures = Figures {
                accessed: word(0)?,
                hits: word(1)?,
                flash: word(2)?,
            };
            let is_sound = figures.hits <= figures.accessed
                && figures.accessed < MOST_FIGURE
                && figures.flash < MOST_FIGURE;
            if !is_sound {
                return None;
            }
            candidates.push((*params, figures));
            rest = after;
        }
        Some(State {
            in_use: *in_use,
            size: u64::from_le_bytes(*size),
            candidates,
            ghosts: rest,
        })
    }
}
