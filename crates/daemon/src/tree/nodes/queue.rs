//! The files of queues, and of NBD connections, in the control tree.

use super::{Node, queue};

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
    Node {
        path: "/queue/QUEUE/requests",
        about: "requests taken",
        file: queue(|it| it.requests.to_string()),
    },
    Node {
        path: "/queue/QUEUE/answered",
        about: "requests answered",
        file: queue(|it| it.answered.to_string()),
    },
    Node {
        path: "/queue/QUEUE/bytes",
        about: "bytes of the requests taken",
        file: queue(|it| it.bytes.to_string()),
    },
    Node {
        path: "/queue/QUEUE/busy_ns",
        about: "its part of the busy time of its I/O threads",
        file: queue(|it| it.busy.as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/outstanding_ns",
        about: "the time of its requests in flight, added up; a second more in a second is one in flight",
        file: queue(|it| it.outstanding.as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/kicks",
        about: "kicks of its guest",
        file: queue(|it| it.kicks.to_string()),
    },
    Node {
        path: "/queue/QUEUE/calls",
        about: "interrupts sent to its guest",
        file: queue(|it| it.calls.to_string()),
    },
    Node {
        path: "/queue/QUEUE/queue_delay_p50_ns",
        about: "half of its requests waited no longer from when the thread first saw them until it took them",
        file: queue(|it| it.delays.quantile(5_000).as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/queue_delay_p99_ns",
        about: "99 % of its requests waited no longer from when the thread first saw them until it took them",
        file: queue(|it| it.delays.quantile(9_900).as_nanos().to_string()),
    },
];
