//! Remedies for refused commands on I/O threads, in the state in which the threads are.

use tidegate_api::name::Name;
use tidegate_api::thread::ThreadState;

/// What to do when no thread can be created.
pub(super) fn create(states: &[ThreadState]) -> String {
    match numbers(states, ThreadState::Locked).as_deref() {
        Some(locked) => format!(
            "unlock one that is locked ({locked}), such as tidegate thread unlock {}; or {MORE}",
            first(locked)
        ),
        None => MORE.to_owned(),
    }
}

/// What to do when a thread cannot be parked. `disks`: those that it serves.
pub(super) fn remove(states: &[ThreadState], thread: u32, disks: &[Name]) -> String {
    match state(states, thread) {
        Some(ThreadState::Active) if is_last(states, thread) => {
            format!("leave it as it is, or first {}", another(states))
        }
        Some(ThreadState::Active) if disks.is_empty() => {
            format!("lock it: tidegate thread lock {thread}; then remove it")
        }
        Some(ThreadState::Active) => format!(
            "lock it: tidegate thread lock {thread}; then move its disks to others, and remove it"
        ),
        Some(ThreadState::Locked | ThreadState::Leaving) => match (disks, to(states)) {
            ([], _) => "try again: a disk is on its way to it or has just left".to_owned(),
            ([disk, others @ ..], Some(to)) => {
                let rest = match others.len() {
                    0 => String::new(),
                    1 => "; then the other one".to_owned(),
                    rest => format!("; then the other {rest}"),
                };
                format!("move it: tidegate thread move {disk} {to}{rest}")
            }
            (_, None) => format!("first {}", another(states)),
        },
        Some(ThreadState::Draining | ThreadState::Parked) => {
            "nothing is left to do: it is parked already".to_owned()
        }
        None => LIST.to_owned(),
    }
}

/// What to do when a thread cannot be locked.
pub(super) fn lock(states: &[ThreadState], thread: u32) -> String {
    match state(states, thread) {
        Some(ThreadState::Draining | ThreadState::Parked) => {
            "nothing is left to do: a parked thread gets no disks. A lower /monitor/max keeps the policy from using it".to_owned()
        }
        Some(ThreadState::Active) if is_last(states, thread) => {
            format!("first {}: disks must have somewhere to go", another(states))
        }
        _ => LIST.to_owned(),
    }
}

/// What to do when a thread cannot be unlocked.
pub(super) fn unlock(states: &[ThreadState], thread: u32) -> String {
    match state(states, thread) {
        Some(ThreadState::Draining | ThreadState::Parked) => format!(
            "take it into use: tidegate thread create{}",
            created(states, thread)
        ),
        _ => LIST.to_owned(),
    }
}

/// What to do when a disk cannot move to a thread, or new disks cannot go to it.
pub(super) fn choose(states: &[ThreadState], thread: u32) -> String {
    let others = match numbers(states, ThreadState::Active) {
        Some(active) => format!("; or choose one that is active: {active}"),
        None => String::new(),
    };
    match state(states, thread) {
        Some(ThreadState::Locked | ThreadState::Leaving) => {
            format!("unlock it: tidegate thread unlock {thread}{others}")
        }
        Some(ThreadState::Draining | ThreadState::Parked) => format!(
            "take it into use: tidegate thread create{}{others}",
            created(states, thread)
        ),
        Some(ThreadState::Active) => "try again".to_owned(),
        None => LIST.to_owned(),
    }
}

const MORE: &str = "raise io.max in tidegate.toml (with io.cpus if it is there) and start the daemon again: guests go on";
const LIST: &str = "see which there are: tidegate thread list";

fn state(states: &[ThreadState], thread: u32) -> Option<ThreadState> {
    let nth = usize::try_from(thread).ok()?;
    states.get(nth).copied()
}

/// The numbers of the threads in a state; none if there are none.
fn numbers(states: &[ThreadState], state: ThreadState) -> Option<String> {
    let all = states.iter().enumerate();
    let such = all.filter(|(_, it)| **it == state);
    let such: Vec<String> = such.map(|(nth, _)| nth.to_string()).collect();
    (!such.is_empty()).then(|| such.join(", "))
}

fn first(numbers: &str) -> &str {
    numbers.split(',').next().unwrap_or(numbers)
}

/// An active thread.
fn to(states: &[ThreadState]) -> Option<usize> {
    states.iter().position(|it| *it == ThreadState::Active)
}

/// Whether no other thread takes disks.
fn is_last(states: &[ThreadState], thread: u32) -> bool {
    numbers(states, ThreadState::Active) == Some(thread.to_string())
}

/// How another thread comes to take disks, as an order.
fn another(states: &[ThreadState]) -> String {
    let locked = numbers(states, ThreadState::Locked);
    let is_parked = |it: &ThreadState| matches!(it, ThreadState::Parked | ThreadState::Draining);
    match (states.iter().any(is_parked), locked.as_deref()) {
        (true, None) => "create another one (tidegate thread create)".to_owned(),
        (true, Some(locked)) => format!(
            "create another one (tidegate thread create) or unlock one (tidegate thread unlock {})",
            first(locked)
        ),
        (false, Some(locked)) => format!(
            "unlock another one (tidegate thread unlock {})",
            first(locked)
        ),
        (false, None) => MORE.to_owned(),
    }
}

/// That a thread comes later, if `create` takes others first.
fn created(states: &[ThreadState], thread: u32) -> String {
    let is_parked = |it: &ThreadState| matches!(it, ThreadState::Parked | ThreadState::Draining);
    let nth = usize::try_from(thread).unwrap_or(usize::MAX);
    let before = states.iter().take(nth).filter(|it| is_parked(it)).count();
    match before {
        0 => String::new(),
        _ => " (it takes the lowest number first)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ThreadState::{Active, Draining, Locked, Parked};

    fn names(text: &str) -> Vec<Name> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn a_refusal_says_what_fits_the_state_of_the_threads() {
        assert!(create(&[Active, Active]).starts_with("raise io.max"));
        let unlock_it = create(&[Active, Locked]);
        assert!(
            unlock_it.contains("tidegate thread unlock 1;"),
            "{unlock_it}"
        );

        let all = [Active, Active, Locked, Parked];
        assert!(lock(&all, 3).starts_with("nothing is left to do"));
        let last = lock(&[Active, Parked], 0);
        assert!(last.contains("tidegate thread create"), "{last}");
        let last = lock(&[Active, Locked], 0);
        assert!(last.contains("tidegate thread unlock 1"), "{last}");
        assert!(lock(&[Active], 0).contains("raise io.max"));

        assert_eq!(
            remove(&all, 1, &names("")),
            "lock it: tidegate thread lock 1; then remove it"
        );
        assert!(remove(&all, 1, &names("db1")).contains("move its disks"));
        assert_eq!(
            remove(&all, 2, &names("db1 web1 web2")),
            "move it: tidegate thread move db1 0; then the other 2"
        );
        assert!(remove(&all, 2, &[]).starts_with("try again"));
        assert!(remove(&all, 3, &[]).contains("parked already"));
        assert!(remove(&[Draining, Active], 0, &[]).contains("parked already"));
        let only = remove(&[Active, Parked], 0, &[]);
        assert!(only.contains("tidegate thread create"), "{only}");

        assert_eq!(unlock(&all, 3), "take it into use: tidegate thread create");
        assert!(unlock(&[Active, Parked, Parked], 2).contains("lowest number"));

        assert_eq!(
            choose(&all, 2),
            "unlock it: tidegate thread unlock 2; or choose one that is active: 0, 1"
        );
        assert!(choose(&all, 3).contains("thread create; or choose"));
        assert_eq!(choose(&all, 0), "try again");
        assert_eq!(choose(&all, 9), LIST);
    }
}
