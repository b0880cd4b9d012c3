//! The system call timeout: it interrupts a call that blocks an I/O thread.
//!
//! A front end shares the descriptor through which its guest is called. It may make the descriptor blocking and fill
//! its counter: a write then blocks the thread, with all its guests, until the counter is read. No flag of the call
//! prevents that, and a check beforehand is racy. So a timer of the thread sends it a signal. The handler does nothing,
//! but the system call ends with EINTR. The timer is armed at a call if it is not armed, at most once in
//! [`TIMEOUT_NS`]. So a call costs two stores and a load, and a thread without calls is not interrupted.
//!
//! # Always true
//! - while a thread is inside [`guarded`], its timer is armed, or its handler is about to arm it
//! - the handler only accesses its thread's own atomics, and arms the timer: both are allowed in a signal handler
//! # Source
//! eventfd(2), timer_create(2), signal-safety(7).

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

/// Longest time of a call; twice that if the timer was armed for an earlier one.
const TIMEOUT_NS: libc::c_long = 10_000_000;

thread_local! {
    static INSIDE: AtomicBool = const { AtomicBool::new(false) };
    static SET: AtomicBool = const { AtomicBool::new(false) };
    /// The thread's timer, once it is created.
    static TIMER: AtomicUsize = const { AtomicUsize::new(0) };
    static OWNED: Cell<Option<Timer>> = const { Cell::new(None) };
}

static INSTALL: Once = Once::new();

/// A thread's timer, deleted at the thread's end.
struct Timer(libc::timer_t);

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is this thread's, and not armed any more: the thread ends.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Makes a system call that should not block. If it blocks nevertheless, it soon ends with EINTR.
#[inline]
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> T {
    // The handler runs on this thread: compiler ordering is enough.
    INSIDE.with(|inside| inside.store(true, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
    if !SET.with(|set| set.load(Ordering::Relaxed)) {
        set();
    }
    let result = call();
    compiler_fence(Ordering::SeqCst);
    INSIDE.with(|inside| inside.store(false, Ordering::Relaxed));
    result
}

#[cold]
#[inline(never)]
fn set() {
    SET.with(|set| set.store(true, Ordering::Relaxed));
    let timer = match TIMER.with(|timer| timer.load(Ordering::Relaxed)) {
        0 => create(),
        known => Ok(known),
    };
    if let Err(error) = timer.and_then(start) {
        // The call is made nevertheless, and no timer is tried again: most front ends are honest.
        tracing::warn!(%error, "no timer for an I/O thread: a front end could block it");
    }
}

/// Creates this thread's timer.
fn create() -> io::Result<usize> {
    INSTALL.call_once(install);
    unblock();
    // SAFETY: a sigevent is plain old data.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGRTMIN();
    // SAFETY: no memory is involved.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer = MaybeUninit::<libc::timer_t>::uninit();
    // SAFETY: both point at values of their types, of which the call reads one and fills the other.
    let made =
        unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the successful call.
    let timer = unsafe { timer.assume_init() };
    OWNED.set(Some(Timer(timer)));
    // A timer's number may be zero.
    let number = timer as usize + 1;
    TIMER.with(|known| known.store(number, Ordering::Relaxed));
    Ok(number)
}

/// Unblocks the signal for this thread, whatever mask it has inherited.
fn unblock() {
    let mut only = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set that it is given.
    unsafe { libc::sigemptyset(only.as_mut_ptr()) };
    // SAFETY: the set was filled, and the signal is one.
    unsafe { libc::sigaddset(only.as_mut_ptr(), libc::SIGRTMIN()) };
    // SAFETY: the call reads the set, and is not asked for the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), std::ptr::null_mut()) };
}

/// Arms the timer for one signal.
fn start(number: usize) -> io::Result<()> {
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let once = libc::itimerspec {
        it_interval: none,
        it_value: libc::timespec {
            tv_nsec: TIMEOUT_NS,
            ..none
        },
    };
    let timer = (number - 1) as libc::timer_t;
    // SAFETY: the timer is this thread's and lives; the call reads the value.
    let done = unsafe { libc::timer_settime(timer, 0, &raw const once, std::ptr::null_mut()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn install() {
    // SAFETY: sigaction is plain old data; zero is an empty mask and no flags: a blocked call is not restarted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = on_timer;
    action.sa_sigaction = handler as usize;
    let signal = libc::SIGRTMIN();
    // SAFETY: the handler is async-signal-safe (see the module) and lives as long as the program.
    let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "a handler for a real-time signal can be installed");
}

extern "C" fn on_timer(_signal: libc::c_int) {
    // SAFETY: no memory is involved.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *place };
    let inside = INSIDE.with(|inside| inside.load(Ordering::Relaxed));
    let number = TIMER.with(|timer| timer.load(Ordering::Relaxed));
    // The signal may have arrived before the call blocked.
    let again = inside && number != 0 && start(number).is_ok();
    SET.with(|set| set.store(again, Ordering::Relaxed));
    // SAFETY: as above.
    unsafe { *place = errno };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd::EventFd;
    use std::time::{Duration, Instant};

    #[test]
    fn only_blocked_calls_are_interrupted_each_time() {
        std::thread::spawn(|| {
            for _ in 0..3 {
                let full = EventFd::blocking_and_full().expect("a descriptor");
                full.call().expect_err("the counter is full");
                assert_eq!(full.drain(), u64::MAX - 1);
                full.call().expect("there is room");
                assert_eq!(full.drain(), 1);
            }
        })
        .join()
        .expect("the thread is not blocked");
    }

    #[test]
    fn a_signal_before_the_call_blocks_is_repeated() {
        std::thread::spawn(|| {
            let full = EventFd::blocking_and_full().expect("a descriptor");
            let begun = Instant::now();
            guarded(|| {
                while begun.elapsed() < Duration::from_nanos(3 * TIMEOUT_NS.unsigned_abs()) {
                    std::hint::spin_loop();
                }
                full.signal();
            });
            assert_eq!(full.drain(), u64::MAX - 1, "the counter was not read");
        })
        .join()
        .expect("the thread is not blocked");
    }

    #[test]
    fn a_thread_without_calls_is_not_interrupted() {
        std::thread::spawn(|| {
            let call = EventFd::new().expect("a descriptor");
            call.call().expect("there is room");
            let begun = Instant::now();
            let long = libc::timespec {
                tv_sec: 0,
                tv_nsec: 5 * TIMEOUT_NS,
            };
            let mut naps = 0;
            while begun.elapsed() < Duration::from_nanos(20 * TIMEOUT_NS.unsigned_abs()) {
                // SAFETY: the call reads the value.
                unsafe { libc::nanosleep(&raw const long, std::ptr::null_mut()) };
                naps += 1;
            }
            // Four whole sleeps, and one that the signal interrupted.
            assert!(naps <= 5, "{naps}");
            assert!(!SET.with(|set| set.load(Ordering::Relaxed)));
        })
        .join()
        .expect("a thread");
    }
}
