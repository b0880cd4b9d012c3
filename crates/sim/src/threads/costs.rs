//! The costs of virtual time for I/O threads: inputs with their sources, not results.
//!
//! Most are measurements on a machine of two vCPUs with Linux 6.18 (medians). A message from a sleeping to a woken thread
//! costs a write to an eventfd, and then the latency of the wake-up. A virtual machine's exits were not measured there:
//! [`Costs::exit`] is an input that experiments vary.
//!
//! # Units
//! Nanoseconds.

/// What the processor, the kernel and the program take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From a wake-up until the woken task runs on an idle core: 5.5 us (median; 99th percentile 11 us).
    pub wake: u64,
    /// From one task to the next on the same core: 1.0 to 1.5 us with the wake-up.
    pub switch: u64,
    /// A kick or call for somebody who sleeps: a write to an eventfd with a sleeper, 1.8 us.
    pub wakeup: u64,
    /// A kick or call for somebody who is awake: the same write without a sleeper, 0.16 us.
    pub notify: u64,
    /// An exit of a vCPU: by a kick, by an interrupt while it runs, and when it halts. Zero for processes as guests.
    pub exit: u64,
    /// A thread that polls sees a request after so long: 0.09 to 0.19 us by shared memory.
    pub notice: u64,
    /// The fixed part of a turn: a system call of 0.12 us, a ring operation of 0.18 us.
    pub turn: u64,
    /// A request on its I/O thread, without the disk's own service: some 921 instructions.
    pub request: u64,
    /// A completion of a datastore on its I/O thread: an operation of the ring, 26 to 170 ns.
    pub completion: u64,
    /// A guest's handling of a reply, where that is not part of the work of a request.
    pub reply: u64,
    /// The longest time that an idle thread polls, where polling pays: the default of 20 us of the ski-rental rule.
    pub spin: u64,
    /// A queue without requests for so long asks for kicks.
    pub quiet: u64,
    /// The slice of a vCPU: a tick of 4 ms.
    pub vcpu_slice: u64,
    /// The slice of an I/O thread: 0.1 ms.
    pub thread_slice: u64,
}

impl Costs {
    /// As measured, with processes as guests.
    pub const MEASURED: Costs = Costs {
        wake: 5_500,
        switch: 1_200,
        wakeup: 1_800,
        notify: 160,
        exit: 0,
        notice: 150,
        turn: 300,
        request: 300,
        completion: 100,
        reply: 300,
        spin: 20_000,
        quiet: 1_000_000,
        vcpu_slice: 4_000_000,
        thread_slice: 100_000,
    };
}
