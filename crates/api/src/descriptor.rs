//! The disk descriptor `disk.toml`. It lies next to the image and describes the disk to every daemon.
//!
//! The daemon's store reads and replaces the file. The plan turns it into the engine's configuration. Other hosts,
//! other versions and people write it too, so the reader trusts nothing.
//!
//! # Always true
//! - Reading any bytes returns a descriptor whose every field is in range, or an error. It never panics.
//! - A written descriptor reads back unchanged.
//! - An unknown version or key is rejected, so that rewriting never drops another program's data.
//!
//! # Picture
//! ```toml
//! version = 1
//! uuid = "0b5e1c7e-9f0e-4f0e-8a53-0d7b6f3f3f11"
//! size = "10GiB"
//! block_size = 512
//! cache = "write-back"
//! filters = ["stats"]
//!
//! [policy]
//! shares = "high"
//! reservation = "500iops"
//! limit = "2000iops"
//! ```
//! A disk with a layout has these too:
//! ```toml
//! layout = "mirror"
//!
//! [[member]]
//! datastore = "ssd1"
//!
//! [[member]]
//! datastore = "ssd2"
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::io::{Coalesce, IO_WEIGHT, IO_WEIGHTS, IoClass, VCPUS};
use crate::name::Name;
use crate::units::{Iops, Rate, Shares, Size, Span};
use flash::{FlashUse, MAX_ATTACHMENT};

pub mod flash;

/// The version that this program writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// The largest descriptor that is read. Ours are under a kilobyte, and a long list of filters fits many times over.
pub const MAX_BYTES: usize = 64 << 10;

/// The largest disk. With 2^62 bytes, every sum of an offset and a length fits a signed 64-bit file offset.
pub const MAX_SIZE: u64 = 1 << 62;

/// The most queues that a disk offers a guest: one for each vCPU, up to a sensible limit for one vhost-user socket.
pub const MAX_QUEUES: u16 = 64;

/// The most data segments of one request, and the default. Linux uses as many with a ring of 128 descriptors: one more
/// holds the header and one the status.
pub const MAX_SEG_MAX: u16 = 126;

/// The longest serial number: the size of virtio-blk's GET_ID reply.
pub const MAX_SERIAL: usize = 20;

/// The longest burst: one day.
pub const MAX_BURST_SECONDS: u32 = 86_400;

/// The default length of a burst at its peak. A guest boots within it.
pub const BURST_SECONDS: u32 = 30;

/// The most filters in a stack. Each sees every I/O, and a hostile file must not create a million.
pub const MAX_FILTERS: usize = 16;

/// The most members of a layout: as many as the data path supports.
pub const MAX_MEMBERS: usize = 32;

/// How long a member of a mirror may leave I/O unanswered, unless a disk says otherwise.
pub const MEMBER_TIMEOUT: Span = Span(10_000_000_000);

/// The shortest and the longest such time. Working datastores pause for less than the one, and no guest waits for the
/// other.
pub const MEMBER_TIMEOUTS: [Span; 2] = [Span(1_000_000_000), Span(3_600_000_000_000)];

/// The longest text of a layout.
const MAX_LAYOUT: usize = 64;

/// A disk as written in `disk.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The format's version: [`VERSION`].
    pub version: u32,
    /// Permanent identity: 32 hexadecimal digits with or without hyphens.
    pub uuid: Uuid,
    /// Disk size in bytes; a whole number of blocks.
    pub size: Size,
    /// Block size that the guest sees: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Cache mode that the guest sees: when its writes are durable.
    #[serde(default)]
    pub cache: CacheMode,
    /// Whether writes are rejected.
    #[serde(default)]
    pub read_only: bool,
    /// Serial number that the guest sees, up to 20 printable characters. Empty: derived from the uuid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// The most queues that a vhost-user guest may use.
    #[serde(default = "default_queues")]
    pub queues: u16,
    /// The most data segments that a vhost-user guest may use in one request.
    #[serde(
        default = "default_seg_max",
        skip_serializing_if = "is_default_seg_max"
    )]
    pub seg_max: u16,
    /// The filter stack, guest side first, each as `name` or `name:key=value,...`.
    #[serde(default)]
    pub filters: Vec<String>,
    /// The image, if it is a block device outside the datastore's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// The upstream's export name, on a datastore of kind `nbd`, if it differs from the disk's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// The datastore to which it was moved: this descriptor is void, and is removed soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<Name>,
    /// The datastore from which it is being moved: this descriptor is void unless that one says so, or is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<Name>,
    /// How its bytes lie on its members, such as `mirror`. None: a plain disk, which is one image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Counts the changes of its members. Of two descriptors of one disk, the one with the higher number counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// How long a member of a mirror may leave I/O unanswered before the mirror goes on without it. None:
    /// [`MEMBER_TIMEOUT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_timeout: Option<Span>,
    /// What a mirror does with guests' I/O after it has lost every member that has all bytes.
    #[serde(default, skip_serializing_if = "OnLoss::is_fail")]
    pub on_loss: OnLoss,
    /// How soon its requests are taken where others compete for its I/O thread.
    #[serde(default, skip_serializing_if = "IoClass::is_normal")]
    pub io_class: IoClass,
    /// Its weight among the disks of its I/O thread. None: [`IO_WEIGHT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u32>,
    /// How its completions are coalesced. None: as the daemon's configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce: Option<Coalesce>,
    /// The vCPUs of the virtual machine that uses it. None: the daemon counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Its I/O control policy.
    #[serde(default)]
    pub policy: PolicyText,
    /// Its flash cache. None: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<FlashUse>,
    /// Where the members of its layout are, in the layout's order. Empty: a plain disk.
    #[serde(default, rename = "member", skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberPlace>,
}

/// Where a member of a layout is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberPlace {
    /// Its datastore. Hosts that share the disk call it the same.
    pub datastore: Name,
    /// The block device that is its image, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// The upstream's export name, on a datastore of kind `nbd`, if it differs from the disk's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Whether the member was removed, and its place is empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

impl MemberPlace {
    /// A member in a datastore's usual place for a disk.
    pub fn on(datastore: Name) -> MemberPlace {
        MemberPlace {
            datastore,
            device: None,
            export: None,
            removed: false,
        }
    }
}

impl std::fmt::Display for MemberPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let datastore = &self.datastore;
        match (&self.device, &self.export) {
            (Some(device), _) => write!(f, "{datastore}:device={}", device.display()),
            (None, Some(export)) => write!(f, "{datastore}:export={export}"),
            (None, None) => write!(f, "{datastore}"),
        }
    }
}

impl std::str::FromStr for MemberPlace {
    type Err = String;

    /// Reads `DATASTORE`, `DATASTORE:device=PATH` or `DATASTORE:export=NAME`.
    fn from_str(text: &str) -> Result<MemberPlace, String> {
        let (datastore, option) = match text.split_once(':') {
            Some((datastore, option)) => (datastore, Some(option)),
            None => (text, None),
        };
        if datastore.contains(',') {
            return Err("give --on once for each member, such as --on ssd1 --on ssd2".to_owned());
        }
        let mut member = MemberPlace::on(datastore.parse().map_err(|e| format!("{e}"))?);
        match option.map(|option| option.split_once('=').unwrap_or((option, ""))) {
            None => {}
            Some(("device", path)) if !path.is_empty() => member.device = Some(path.into()),
            Some(("export", name)) if !name.is_empty() => member.export = Some(name.to_owned()),
            Some((option, _)) => {
                return Err(format!(
                    "'{option}' is not an option of a member: write {datastore}, {datastore}:device=PATH or \
                     {datastore}:export=NAME"
                ));
            }
        }
        Ok(member)
    }
}

/// What a mirror does with guests' I/O after it has lost every member that has all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// It fails.
    #[default]
    Fail,
    /// It waits until one of these members is back, or the disk is detached.
    Wait,
}

impl OnLoss {
    fn is_fail(&self) -> bool {
        *self == OnLoss::Fail
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            OnLoss::Fail => "fail",
            OnLoss::Wait => "wait",
        }
    }
}

impl std::str::FromStr for OnLoss {
    type Err = String;
    fn from_str(text: &str) -> Result<OnLoss, String> {
        match text {
            "fail" => Ok(OnLoss::Fail),
            "wait" => Ok(OnLoss::Wait),
            _ => Err(format!("'{text}' is neither fail nor wait")),
        }
    }
}

/// When a guest's writes are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// A completed write may be lost until a flush. Every modern guest flushes.
    #[default]
    WriteBack,
    /// Every completed write is durable. For guests that never flush.
    WriteThrough,
}

impl std::str::FromStr for CacheMode {
    type Err = String;
    fn from_str(text: &str) -> Result<CacheMode, String> {
        match text {
            "write-back" | "writeback" => Ok(CacheMode::WriteBack),
            "write-through" | "writethrough" => Ok(CacheMode::WriteThrough),
            _ => Err(format!(
                "'{text}' is not a cache mode: use write-back or write-through; a disk gets a flash cache by `tidegate disk set DISK --cache NAME`"
            )),
        }
    }
}

/// A disk's policy as written in its descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// Relative weight.
    #[serde(default)]
    pub shares: Shares,
    /// IOPS floor.
    #[serde(default)]
    pub reservation: Iops,
    /// IOPS ceiling. None: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Iops>,
    /// IOPS ceiling during a burst. None: no bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Iops>,
    /// How long a burst lasts at its ceiling. None: [`BURST_SECONDS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_seconds: Option<u32>,
    /// Bandwidth ceiling. None: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bandwidth: Option<Rate>,
    /// Target latency of its I/Os.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_target: Option<Span>,
    /// Its group. The group's limits apply to the sum of its disks on a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
}

impl PolicyText {
    /// Checks that every value is in range and that the values agree.
    pub fn check(&self) -> Result<(), OutOfRange> {
        if self.reservation.0 > u64::from(u32::MAX) {
            return refuse(
                format!("reservation {} is too large", self.reservation),
                format!("reserve at most {} (--reservation)", Iops(u32::MAX.into())),
            );
        }
        match self.limit {
            Some(Iops(0)) => {
                return refuse(
                    "limit 0 would stop the disk",
                    "give at least 1, or take the limit off: --limit unlimited",
                );
            }
            Some(limit) if limit < self.reservation => {
                let reservation = self.reservation;
                return refuse(
                    format!("reservation {reservation} is above limit {limit}"),
                    format!(
                        "raise the limit (--limit {reservation}), or reserve less (--reservation {limit})"
                    ),
                );
            }
            _ => {}
        }
        self.check_burst()?;
        if self.limit_bandwidth == Some(Rate(0)) {
            return refuse(
                "limit_bandwidth 0 would stop the disk",
                "give more, or take the limit off: --limit-bandwidth unlimited",
            );
        }
        if self.latency_target == Some(Span(0)) {
            return refuse(
                "latency_target 0 cannot be kept",
                "give more, such as 5ms, or take the target off: --latency-target none",
            );
        }
        Ok(())
    }

    fn check_burst(&self) -> Result<(), OutOfRange> {
        match (self.limit, self.burst, self.burst_seconds) {
            (None, Some(burst), _) => refuse(
                format!("burst {burst} needs a limit that it passes"),
                "give --limit too, or leave --burst-iops out",
            ),
            (Some(limit), Some(burst), _) if burst < limit => refuse(
                format!("burst {burst} is below limit {limit}"),
                format!("say --burst-iops {limit} or more, or --burst-iops none"),
            ),
            (_, None, Some(_)) => refuse(
                "burst_seconds without a burst means nothing",
                "give --burst-iops too, or leave --burst-seconds out",
            ),
            (_, _, Some(seconds)) if seconds == 0 || seconds > MAX_BURST_SECONDS => refuse(
                format!("burst_seconds {seconds} is not from 1 to {MAX_BURST_SECONDS}"),
                format!("say --burst-seconds 1 to {MAX_BURST_SECONDS}"),
            ),
            _ => Ok(()),
        }
    }
}

/// A value that is out of range, and a valid replacement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OutOfRange {
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

fn refuse(why: impl Into<String>, remedy: impl Into<String>) -> Result<(), OutOfRange> {
    let (why, remedy) = (why.into(), remedy.into());
    Err(OutOfRange { why, remedy })
}

/// A disk's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Makes a version 4 identity from 16 random bytes.
    pub const fn from_random(mut bytes: [u8; 16]) -> Uuid {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (nth, byte) in self.0.iter().enumerate() {
            let hyphen = if matches!(nth, 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> String {
        uuid.to_string()
    }
}

impl TryFrom<String> for Uuid {
    type Error = String;
    fn try_from(text: String) -> Result<Uuid, String> {
        let digits: Vec<u32> = text
            .chars()
            .filter(|c| *c != '-')
            .map_while(|c| c.to_digit(16))
            .take(33)
            .collect();
        let hyphens = text.bytes().filter(|b| *b == b'-').count();
        if digits.len() != 32 || text.len() != 32 + hyphens || hyphens > 4 {
            return Err("a uuid is 32 hexadecimal digits, with hyphens as 8-4-4-4-12".to_owned());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::try_from(pair[0] << 4 | pair[1]).map_err(|e| e.to_string())?;
        }
        Ok(Uuid(bytes))
    }
}

/// Why a `disk.toml` cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Longer than any descriptor.
    #[error("it has {0} bytes, a descriptor has at most {MAX_BYTES}")]
    TooLong(usize),
    /// Not text.
    #[error("it is not UTF-8 text")]
    NotText(#[from] std::str::Utf8Error),
    /// Not TOML, or keys missing, unknown or of the wrong type.
    // The message is the parser's. The parser's error is therefore not repeated as a cause.
    #[error("{}", crate::toml_error::message(.0))]
    Syntax(toml::de::Error),
    /// Written by a newer program.
    #[error(
        "its format is version {0}, this program reads version {VERSION}; use the program that wrote it"
    )]
    Version(u32),
    /// A value out of range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

impl Descriptor {
    /// A new disk of `size` bytes with default settings.
    pub fn new(uuid: Uuid, size: u64) -> Descriptor {
        Descriptor {
            version: VERSION,
            uuid,
            size: Size(size),
            block_size: default_block_size(),
            cache: CacheMode::default(),
            read_only: false,
            serial: String::new(),
            queues: default_queues(),
            seg_max: default_seg_max(),
            filters: vec!["stats".to_owned()],
            device: None,
            export: None,
            moved_to: None,
            moved_from: None,
            layout: None,
            generation: 0,
            member_timeout: None,
            on_loss: OnLoss::Fail,
            io_class: IoClass::Normal,
            io_weight: None,
            coalesce: None,
            vcpus: None,
            policy: PolicyText::default(),
            flash: None,
            members: Vec::new(),
        }
    }

    /// Whether its bytes lie on several members.
    pub fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// Parses the bytes of a file.
    pub fn read(bytes: &[u8]) -> Result<Descriptor, DescriptorError> {
        /// Only the version, which is checked before any other key.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        if bytes.len() > MAX_BYTES {
            return Err(DescriptorError::TooLong(bytes.len()));
        }
        let text = std::str::from_utf8(bytes)?;
        let Versioned { version } = toml::from_str(text).map_err(DescriptorError::Syntax)?;
        if version != VERSION {
            return Err(DescriptorError::Version(version));
        }
        let descriptor: Descriptor = toml::from_str(text).map_err(DescriptorError::Syntax)?;
        descriptor.check()?;
        Ok(descriptor)
    }

    /// The text of the file.
    pub fn write(&self) -> String {
        toml::to_string(self).expect("a descriptor has only values that TOML can hold")
    }

    fn check_flash(&self) -> Result<(), OutOfRange> {
        let Some(flash) = &self.flash else {
            return Ok(());
        };
        if flash.attachment == 0 || flash.attachment > MAX_ATTACHMENT {
            return refuse(
                format!("flash.attachment is not from 1 to {MAX_ATTACHMENT}"),
                "restore a copy of the descriptor",
            );
        }
        if let (Some(min), Some(max)) = (flash.min, flash.max)
            && min > max
        {
            return refuse(
                format!("the least part of the cache, {min}, is above the largest, {max}"),
                "give a smaller --cache-min, or a larger --cache-max",
            );
        }
        Ok(())
    }

    /// Checks that every field is in range. [`Descriptor::read`] calls this.
    pub fn check(&self) -> Result<(), OutOfRange> {
        if !matches!(self.block_size, 512 | 4096) {
            return refuse(
                format!("block_size {} is neither 512 nor 4096", self.block_size),
                "use one of the two",
            );
        }
        self.check_size()?;
        self.check_flash()?;
        if self.queues == 0 || self.queues > MAX_QUEUES {
            return refuse(
                format!("queues {} is not from 1 to {MAX_QUEUES}", self.queues),
                format!("say --queues 1 to {MAX_QUEUES}, or leave it out"),
            );
        }
        if self.seg_max == 0 || self.seg_max > MAX_SEG_MAX {
            return refuse(
                format!("seg_max {} is not from 1 to {MAX_SEG_MAX}", self.seg_max),
                format!("say --seg-max 1 to {MAX_SEG_MAX}, or leave it out"),
            );
        }
        if self.serial.len() > MAX_SERIAL
            || !self.serial.bytes().all(|b| (b' '..=b'~').contains(&b))
        {
            return refuse(
                format!("the serial is not up to {MAX_SERIAL} printable ASCII characters"),
                "shorten it, or leave it out: it is made from the uuid then",
            );
        }
        if self.filters.len() > MAX_FILTERS {
            return refuse(
                format!("{} filters are more than {MAX_FILTERS}", self.filters.len()),
                "leave some out",
            );
        }
        let [shortest, longest] = MEMBER_TIMEOUTS;
        if let Some(timeout) = self.member_timeout
            && !(shortest..=longest).contains(&timeout)
        {
            return refuse(
                format!("member_timeout {timeout} is not from {shortest} to {longest}"),
                format!(
                    "say --member-timeout {shortest} to {longest}, or --member-timeout default"
                ),
            );
        }
        if let Some(weight) = self.io_weight
            && !IO_WEIGHTS.contains(&weight)
        {
            let (least, most) = (IO_WEIGHTS.start(), IO_WEIGHTS.end());
            return refuse(
                format!("io_weight {weight} is not from {least} to {most}"),
                format!(
                    "say --io-weight {least} to {most}, or --io-weight default for {IO_WEIGHT}"
                ),
            );
        }
        if let Some(vcpus) = self.vcpus
            && !VCPUS.contains(&vcpus)
        {
            let (least, most) = (VCPUS.start(), VCPUS.end());
            return refuse(
                format!("vcpus {vcpus} is not from {least} to {most}"),
                format!("say --vcpus {least} to {most}, or --vcpus default: they are counted"),
            );
        }
        if self.devices().any(|path| !path.is_absolute()) {
            return refuse(
                "device is not an absolute path",
                "give an absolute path, such as /dev/sdb",
            );
        }
        self.check_members()?;
        self.policy.check()
    }

    /// The block devices that are its images.
    pub fn devices(&self) -> impl Iterator<Item = &PathBuf> {
        let members = self.members.iter();
        self.device
            .iter()
            .chain(members.filter_map(|member| member.device.as_ref()))
    }

    fn check_members(&self) -> Result<(), OutOfRange> {
        let Some(layout) = &self.layout else {
            return match self.members.is_empty() {
                true => Ok(()),
                false => refuse("it has members but no layout", "say which layout they have"),
            };
        };
        if self.members.is_empty() {
            return refuse(
                "it has a layout but no members",
                "say where its members are",
            );
        }
        if self.members.len() > MAX_MEMBERS || layout.len() > MAX_LAYOUT {
            return refuse(
                format!(
                    "it has more than {MAX_MEMBERS} members, or no layout that this program knows"
                ),
                "use fewer members, and a layout such as mirror",
            );
        }
        if self.device.is_some() || self.export.is_some() {
            return refuse(
                "it has a layout, and a device or an export of its own",
                "name devices and exports of its members",
            );
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), OutOfRange> {
        let Size(size) = self.size;
        if size == 0 || size > MAX_SIZE {
            return refuse(
                format!("size {size} is not from 1 to {MAX_SIZE} bytes"),
                "give a size such as 10G",
            );
        }
        match size.is_multiple_of(u64::from(self.block_size)) {
            true => Ok(()),
            false => uneven(size, self.block_size.into()),
        }
    }

    /// The serial number that the guest sees: the configured one, or the first 20 digits of the uuid.
    pub fn effective_serial(&self) -> String {
        if self.serial.is_empty() {
            self.uuid
                .to_string()
                .replace('-', "")
                .chars()
                .take(MAX_SERIAL)
                .collect()
        } else {
            self.serial.clone()
        }
    }
}

/// The error for a size that is not a whole number of blocks, with the nearest valid sizes.
fn uneven(size: u64, block: u64) -> Result<(), OutOfRange> {
    let below = size / block * block;
    let above = below.saturating_add(block);
    let nearest = match (below, above) {
        (0, above) => above.to_string(),
        (below, above) if above > MAX_SIZE => below.to_string(),
        (below, above) => format!("{below} or {above}"),
    };
    refuse(
        format!("size {size} is not a whole number of blocks of {block} bytes"),
        format!("use {nearest}"),
    )
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn default_block_size() -> u32 {
    512
}

/// Enough for a guest with as many vCPUs. An unused queue costs almost nothing.
fn default_queues() -> u16 {
    16
}

fn default_seg_max() -> u16 {
    MAX_SEG_MAX
}

fn is_default_seg_max(seg_max: &u16) -> bool {
    *seg_max == default_seg_max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Problem, ProblemCode};

    fn sample() -> Descriptor {
        let mut disk = Descriptor::new(Uuid::from_random([7; 16]), 10 << 30);
        disk.filters = vec!["stats".into(), "fault:read=eio".into()];
        disk.policy.limit = Some(Iops(2000));
        disk.device = Some("/dev/sdb".into());
        disk
    }

    #[test]
    fn a_written_descriptor_reads_back_unchanged() {
        let disk = sample();
        assert_eq!(Descriptor::read(disk.write().as_bytes()).unwrap(), disk);
    }

    fn mirrored() -> Descriptor {
        let mut disk = Descriptor::new(Uuid::from_random([7; 16]), 10 << 30);
        disk.layout = Some("mirror".to_owned());
        disk.members = ["ssd1", "ssd2:device=/dev/sdb", "far:export=db1"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        disk
    }

    #[test]
    fn members_read_back_unchanged_and_a_plain_disk_says_nothing_of_them() {
        let disk = mirrored();
        let text = disk.write();
        assert_eq!(Descriptor::read(text.as_bytes()).unwrap(), disk);
        assert!(
            text.contains("[[member]]\ndatastore = \"ssd1\"\n"),
            "{text}"
        );
        let plain = sample().write();
        assert!(
            !plain.contains("layout") && !plain.contains("member"),
            "{plain}"
        );
    }

    #[test]
    fn a_member_is_written_as_it_is_read() {
        for text in ["ssd1", "ssd1:device=/dev/sdb", "far:export=a=b"] {
            assert_eq!(text.parse::<MemberPlace>().unwrap().to_string(), text);
        }
        for text in ["", "../x", "ssd1:device", "ssd1:device=", "ssd1:size=3"] {
            assert!(text.parse::<MemberPlace>().is_err(), "{text}");
        }
        let many = "ssd1,ssd2".parse::<MemberPlace>().unwrap_err();
        assert!(many.contains("--on ssd1 --on ssd2"), "{many}");
    }

    #[test]
    fn a_layout_and_its_members_come_together() {
        let break_it: [fn(&mut Descriptor); 6] = [
            |d| d.layout = None,
            |d| d.members.clear(),
            |d| d.members = vec![MemberPlace::on("a".parse().unwrap()); MAX_MEMBERS + 1],
            |d| d.device = Some("/dev/sdc".into()),
            |d| d.export = Some("x".into()),
            |d| d.members[1].device = Some("sdb".into()),
        ];
        for (nth, broken) in break_it.into_iter().enumerate() {
            let mut disk = mirrored();
            broken(&mut disk);
            assert!(disk.check().is_err(), "case {nth}");
        }
    }

    #[test]
    fn a_written_policy_reads_back_unchanged() {
        let mut disk = sample();
        disk.policy.burst = Some(Iops(6000));
        disk.policy.burst_seconds = Some(10);
        disk.policy.latency_target = Some(Span(5_000_000));
        disk.policy.group = Some("shop".parse().unwrap());
        let text = disk.write();
        assert!(text.contains("latency_target = \"5ms\""), "{text}");
        assert_eq!(Descriptor::read(text.as_bytes()).unwrap(), disk);
    }

    #[test]
    fn the_smallest_descriptor_gets_defaults() {
        let text = "version = 1\nuuid = '0b5e1c7e-9f0e-4f0e-8a53-0d7b6f3f3f11'\nsize = 1048576\n";
        let disk = Descriptor::read(text.as_bytes()).unwrap();
        assert_eq!(
            (disk.block_size, disk.queues, disk.cache),
            (512, 16, CacheMode::WriteBack)
        );
        assert_eq!(disk.policy.shares, Shares::NORMAL);
        assert_eq!(disk.effective_serial(), "0b5e1c7e9f0e4f0e8a53");
    }

    #[test]
    fn the_default_seg_max_is_not_written_so_that_older_programs_can_read_the_disk() {
        let mut disk = sample();
        assert_eq!(disk.seg_max, 126);
        assert!(!disk.write().contains("seg_max"));
        disk.seg_max = 30;
        assert_eq!(Descriptor::read(disk.write().as_bytes()).unwrap(), disk);
    }

    #[test]
    fn a_descriptor_error_is_reported_once() {
        let error = Descriptor::read(b"version = 1\nnonsense").unwrap_err();
        let problem = Problem::new(ProblemCode::Corrupt, "it is damaged").because_of(&error);
        assert_eq!(problem.why, [error.to_string()]);
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number_even_with_unknown_keys() {
        let error = Descriptor::read(b"version = 2\nmirror = true").unwrap_err();
        assert!(matches!(error, DescriptorError::Version(2)), "{error}");
    }

    #[test]
    fn values_out_of_range_are_rejected() {
        let break_it: [fn(&mut Descriptor); 19] = [
            |d| d.size = Size(0),
            |d| d.size = Size(1000),
            |d| d.size = Size(u64::MAX - 511),
            |d| d.block_size = 513,
            |d| d.queues = 0,
            |d| d.queues = 1000,
            |d| d.seg_max = 0,
            |d| d.seg_max = 127,
            |d| d.serial = "x".repeat(21),
            |d| d.serial = "tab\t".into(),
            |d| d.device = Some("../../etc/passwd".into()),
            |d| d.policy.limit = Some(Iops(0)),
            |d| d.policy.reservation = Iops(5000),
            |d| d.policy.burst = Some(Iops(1999)),
            |d| d.policy.burst_seconds = Some(30),
            |d| (d.policy.burst, d.policy.burst_seconds) = (Some(Iops(3000)), Some(0)),
            |d| (d.policy.limit, d.policy.burst) = (None, Some(Iops(3000))),
            |d| d.policy.limit_bandwidth = Some(Rate(0)),
            |d| d.policy.latency_target = Some(Span(0)),
        ];
        for (nth, broken) in break_it.into_iter().enumerate() {
            let mut disk = sample();
            broken(&mut disk);
            let text = disk.write();
            assert!(
                Descriptor::read(text.as_bytes()).is_err(),
                "case {nth}: {text}"
            );
        }
    }

    #[test]
    fn a_size_that_is_not_whole_blocks_is_rejected_with_the_nearest_valid_sizes() {
        let message = |size, block_size| {
            let mut disk = sample();
            (disk.size, disk.block_size) = (Size(size), block_size);
            disk.check().unwrap_err().remedy
        };
        let says = |text: String, remedy: &str| assert_eq!(text, remedy);
        says(message(1_000_000_000, 4096), "use 999997440 or 1000001536");
        says(message(1000, 512), "use 512 or 1024");
        says(message(100, 512), "use 512");
        says(
            message(MAX_SIZE - 1, 512),
            &format!("use {} or {MAX_SIZE}", MAX_SIZE - 512),
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let deep = format!("version = 1\nx = {}", "[".repeat(60_000));
        let cases: [&[u8]; 7] = [
            b"",
            b"\xff\xfe",
            b"version = 1",
            b"version = 1\nversion = 1",
            b"version = -1",
            deep.as_bytes(),
            &[b' '; MAX_BYTES + 1],
        ];
        for bytes in cases {
            assert!(Descriptor::read(bytes).is_err());
        }
        let typo = format!("{}\n[polcy]\nshares = 5\n", sample().write());
        assert!(
            Descriptor::read(typo.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("polcy")
        );
    }
}
