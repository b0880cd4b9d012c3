//! Tests the queue with a simulated guest, whose memory is byte vectors.

#[path = "vhost_guest/bench.rs"]
mod bench;
#[path = "vhost_guest/crashes.rs"]
mod crashes;
#[path = "vhost_guest/driver.rs"]
mod driver;
#[path = "vhost_guest/hostile.rs"]
mod hostile;
#[path = "vhost_guest/memory.rs"]
mod memory;
#[path = "vhost_guest/requests.rs"]
mod requests;
#[path = "vhost_guest/rings.rs"]
mod rings;
