//! The values of policy settings, and their text form.

use crate::distributions::{DistributionId, check_stripe_unit};
use crate::policy::MIRRORS_MAX;
use crate::threshold::{ALWAYS_MGR, Rule};
use std::time::Duration;
use types::limits::{FILE_SIZE_MAX, STRIPE_COUNT_MAX};

/// The value of `gather_size` that means as many bytes as one request of maximum size to each iod of a file can send.
pub const FULL: u64 = u64::MAX;
/// An unlimited delay, written as "max".
pub const NEVER: Duration = Duration::MAX;

/// Maximum value of `read_ahead`, in bytes.
const READ_AHEAD_MAX: u64 = 64 << 20;
/// The longest time that a policy text can express, apart from "max".
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The access method: which caches lie between a program and the servers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A mount uses the kernel's page cache. A program that uses the client library without a mount gets the behaviour
    /// of [`Access::Direct`].
    Page,
    /// Reads and writes bypass the page cache. The client gathers writes and sends them after the write call has
    /// returned.
    Direct,
    /// Reads and writes bypass the page cache, and the client does not gather writes. A write call returns after a
    /// server has acknowledged the data.
    Unbuffered,
}

impl Access {
    const ALL: [Access; 3] = [Access::Page, Access::Direct, Access::Unbuffered];

    /// Returns the name of the access method, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Access::Page => "page",
            Access::Direct => "direct",
            Access::Unbuffered => "unbuffered",
        }
    }

    /// Returns the access method with this name; `None` for other names.
    pub fn from_name(name: &str) -> Option<Access> {
        Access::ALL.into_iter().find(|access| access.name() == name)
    }
}

/// The consistency between clients that use one file at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// Every read, truncate and file size query sees all writes that returned before the call, on any client.
    Coherent,
    /// An open sees all writes that other clients made before they closed the file. There is no other guarantee.
    CloseToOpen,
}

impl Sharing {
    const ALL: [Sharing; 2] = [Sharing::Coherent, Sharing::CloseToOpen];

    /// Returns the name of the consistency, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Sharing::Coherent => "coherent",
            Sharing::CloseToOpen => "close-to-open",
        }
    }

    /// Returns the consistency with this name; `None` for other names.
    pub fn from_name(name: &str) -> Option<Sharing> {
        Sharing::ALL.into_iter().find(|sharing| sharing.name() == name)
    }
}

/// The stored kind of new files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoredLayout {
    /// The bytes of a file are striped over the iods.
    Stripe,
    /// Each client that writes a file has a data log of its own ([`crate::kinds::log`]).
    Log,
}

impl StoredLayout {
    const ALL: [StoredLayout; 2] = [StoredLayout::Stripe, StoredLayout::Log];

    /// Returns the name of the stored kind, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            StoredLayout::Stripe => "stripe",
            StoredLayout::Log => "log",
        }
    }

    /// Returns the stored kind with this name; `None` for other names.
    pub fn from_name(name: &str) -> Option<StoredLayout> {
        StoredLayout::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// When a client requests the layout of a file (LAYOUTGET).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LayoutWhen {
    /// If all requests of the file take the direct path, the client requests the layout when a program opens the
    /// file. Otherwise the client requests the layout at the first read or write that takes the direct path.
    Auto,
    /// The client requests the layout when a program opens the file.
    Open,
    /// The client requests the layout at the first read or write that takes the direct path.
    FirstIo,
    /// The client requests the layout at the first read or write after the file has reached this size in bytes. Until
    /// then all requests take the mgr path. (`mdsthreshold` has a file size limit too: RFC 8881 §5.12.6.)
    Size(u64),
}

pub(super) fn stored_layout_text(kind: StoredLayout) -> String {
    kind.name().to_owned()
}

pub(super) fn number(n: u32) -> String {
    n.to_string()
}

pub(super) fn unit(text: &str) -> Option<u64> {
    parse_size(text).filter(|unit| check_stripe_unit(*unit).is_ok())
}

pub(super) fn stripe_count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| *n as usize <= STRIPE_COUNT_MAX)
}

pub(super) fn mirrors(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| (1..=MIRRORS_MAX).contains(n))
}

pub(super) fn distribution(text: &str) -> Option<DistributionId> {
    DistributionId::ALL.into_iter().find(|id| id.name() == text)
}

pub(super) fn distribution_name(id: DistributionId) -> String {
    id.name().to_owned()
}

pub(super) fn distribution_names() -> String {
    DistributionId::ALL.map(DistributionId::name).join(" or ")
}

pub(super) fn layout_when(text: &str) -> Option<LayoutWhen> {
    match text {
        "auto" => Some(LayoutWhen::Auto),
        "open" => Some(LayoutWhen::Open),
        "first-io" => Some(LayoutWhen::FirstIo),
        _ => size(text).map(LayoutWhen::Size),
    }
}

pub(super) fn layout_when_text(when: LayoutWhen) -> String {
    match when {
        LayoutWhen::Auto => "auto".to_owned(),
        LayoutWhen::Open => "open".to_owned(),
        LayoutWhen::FirstIo => "first-io".to_owned(),
        LayoutWhen::Size(size) => format_size(size),
    }
}

pub(super) fn rule(text: &str) -> Option<Rule> {
    if text == "auto" { Some(Rule::Auto) } else { threshold(text).map(Rule::Fixed) }
}

pub(super) fn rule_text(rule: Rule) -> String {
    match rule {
        Rule::Auto => "auto".to_owned(),
        Rule::Fixed(t) => threshold_text(t),
    }
}

pub(super) fn threshold(text: &str) -> Option<u64> {
    if text == "max" { Some(ALWAYS_MGR) } else { size(text) }
}

pub(super) fn threshold_text(t: u64) -> String {
    if t == ALWAYS_MGR { "max".to_owned() } else { format_size(t) }
}

pub(super) fn access_text(access: Access) -> String {
    access.name().to_owned()
}

pub(super) fn sharing_text(sharing: Sharing) -> String {
    sharing.name().to_owned()
}

pub(super) fn gather_size(text: &str) -> Option<u64> {
    if text == "full" { Some(FULL) } else { size(text) }
}

pub(super) fn gather_size_text(size: u64) -> String {
    if size == FULL { "full".to_owned() } else { format_size(size) }
}

pub(super) fn read_ahead(text: &str) -> Option<u64> {
    size(text).filter(|size| *size <= READ_AHEAD_MAX)
}

/// Parses a size in bytes that is at most the maximum file size. Returns `None` for other texts and for sizes above
/// this maximum.
fn size(text: &str) -> Option<u64> {
    parse_size(text).filter(|size| *size <= FILE_SIZE_MAX)
}

const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses a size in bytes: decimal digits, optionally followed by K, M, G or T (powers of 1024; any case; `iB` or `B`
/// may follow the letter). Returns `None` for other texts and for sizes that exceed 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let unit = text[end..].trim_start().to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit) {
        "" if unit == "IB" => return None,
        "" => 0,
        letter => SUFFIXES.iter().find(|(c, _)| letter.chars().eq([*c]))?.1,
    };
    number.checked_mul(1 << shift)
}

/// Returns the shortest text that [`parse_size`] parses as exactly `size`.
pub fn format_size(size: u64) -> String {
    let fits = SUFFIXES.iter().rev().find(|(_, shift)| size > 0 && size.is_multiple_of(1 << shift));
    match fits {
        Some((letter, shift)) => format!("{}{letter}", size >> shift),
        None => size.to_string(),
    }
}

const TIMES: [(&str, u64); 3] = [("ms", 1_000), ("us", 1), ("s", 1_000_000)];

/// Parses a time of at most one day: "0", "max" for [`NEVER`], or decimal digits followed by `us`, `ms` or `s`.
pub fn parse_time(text: &str) -> Option<Duration> {
    match text {
        "max" => return Some(NEVER),
        "0" => return Some(Duration::ZERO),
        _ => {}
    }
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    let (_, micros) = TIMES.iter().find(|(unit, _)| *unit == &text[end..])?;
    number.checked_mul(*micros).map(Duration::from_micros).filter(|time| *time <= TIME_MAX)
}

/// Returns the shortest text that [`parse_time`] parses as `time`, rounded to microseconds.
pub fn format_time(time: Duration) -> String {
    let Some(micros) = u64::try_from(time.as_micros()).ok().filter(|_| time != NEVER) else { return "max".to_owned() };
    match micros {
        0 => "0".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }
}
