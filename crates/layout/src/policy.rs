//! The policy record: how new files of a directory are laid out, kept in xattrs and inherited.
//!
//! Each part of a policy is an xattr of its own, `user.weir.stripe_unit` and so on; NFS carries the names without their
//! `user.` prefix (RFC 8276 §5), and so does this module. A new directory gets a copy of its parent's policy xattrs when
//! it is made, so that an open never walks up the tree; changing a directory's policy later changes neither existing
//! files nor existing directories below it. A file takes the policy of its directory when it is made and keeps the
//! resulting layout for life.

use crate::distributions::{BadGeometry, DistributionId, check_stripe_unit};
use types::limits::{FILE_SIZE_MAX, STRIPE_COUNT_MAX};

/// What all policy xattr names begin with.
pub const PREFIX: &str = "weir.";

/// Bytes per stripe unit.
pub const STRIPE_UNIT: &str = "weir.stripe_unit";
/// Number of iods per file; 0 means all.
pub const STRIPE_COUNT: &str = "weir.stripe_count";
/// Length in bytes below which a request goes through the mgr; 0 means never.
pub const THRESHOLD: &str = "weir.threshold";
/// How many copies of a file there are, each on iods of its own.
pub const MIRRORS: &str = "weir.mirrors";
/// When a mount may keep file data in the page cache.
pub const CACHE: &str = "weir.cache";
/// How bytes are dealt out to the iods.
pub const DISTRIBUTION: &str = "weir.distribution";

/// Every policy xattr, in the order to show them.
pub const NAMES: [&str; 6] = [STRIPE_UNIT, STRIPE_COUNT, MIRRORS, THRESHOLD, CACHE, DISTRIBUTION];

/// Most copies of a file.
pub const MIRRORS_MAX: u32 = 2;

/// When a mount may keep file data in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Cache {
    /// Never: every read and write reaches the servers.
    #[default]
    None,
    /// While the server's delegation says that nobody else writes.
    Delegation,
}

impl Cache {
    fn name(self) -> &'static str {
        match self {
            Cache::None => "none",
            Cache::Delegation => "delegation",
        }
    }
}

/// How a new file is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// Bytes per stripe unit.
    pub stripe_unit: u64,
    /// Number of iods per file, 0 for all.
    pub stripe_count: u32,
    /// Number of copies, 1 or 2.
    pub mirrors: u32,
    /// Requests shorter than this many bytes go through the mgr; 0: none does.
    pub threshold: u64,
    /// When a mount may cache.
    pub cache: Cache,
    /// How bytes are dealt out.
    pub distribution: DistributionId,
}

impl Default for Policy {
    /// Files of up to 1 MiB are one object, and one request moves them.
    fn default() -> Self {
        Policy {
            stripe_unit: 1 << 20,
            stripe_count: 0,
            mirrors: 1,
            threshold: 0,
            cache: Cache::None,
            distribution: DistributionId::SimpleStripe,
        }
    }
}

/// A policy xattr that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// No policy xattr has this name.
    #[error("no policy is called {0:?}; there are {names}", names = NAMES.join(", "))]
    Name(String),
    /// The value is not a size.
    #[error("{name}: {value:?} is not a size; write bytes or a number with K, M, G or T, as in 64K or 1M")]
    Size {
        /// The xattr.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// The value is not a count within bounds.
    #[error("{name}: {value:?} is not a number from 0 (all iods) to {STRIPE_COUNT_MAX}")]
    Count {
        /// The xattr.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// The value is not a number of copies.
    #[error("{name}: {value:?} is not a number of copies from 1 to {MIRRORS_MAX}")]
    Mirrors {
        /// The xattr.
        name: &'static str,
        /// What was given.
        value: String,
    },
    /// The value is not one of the words allowed.
    #[error("{name}: {value:?} is none of {allowed}")]
    Word {
        /// The xattr.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The size is one that no layout has.
    #[error("{name}: {source}")]
    Geometry {
        /// The xattr.
        name: &'static str,
        /// Why.
        source: BadGeometry,
    },
}

/// Whether an xattr of this name belongs to the policy (also one that this version does not know).
pub fn is_policy_name(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

impl Policy {
    /// Sets the part called `name` from its text; a failure leaves the policy as it was.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), PolicyError> {
        let shown = || String::from_utf8_lossy(&value[..value.len().min(80)]).into_owned();
        let text = std::str::from_utf8(value).unwrap_or("\u{fffd}").trim();
        let known = NAMES.into_iter().find(|n| n.as_bytes() == name);
        let name = known.ok_or_else(|| PolicyError::Name(String::from_utf8_lossy(name).into_owned()))?;
        let size = || {
            parse_size(text).filter(|n| *n <= FILE_SIZE_MAX).ok_or_else(|| PolicyError::Size { name, value: shown() })
        };
        match name {
            STRIPE_UNIT => {
                let unit = size()?;
                check_stripe_unit(unit).map_err(|source| PolicyError::Geometry { name, source })?;
                self.stripe_unit = unit;
            }
            STRIPE_COUNT => {
                let count = text.parse().ok().filter(|n| *n as usize <= STRIPE_COUNT_MAX);
                self.stripe_count = count.ok_or_else(|| PolicyError::Count { name, value: shown() })?;
            }
            MIRRORS => {
                let mirrors = text.parse().ok().filter(|n| (1..=MIRRORS_MAX).contains(n));
                self.mirrors = mirrors.ok_or_else(|| PolicyError::Mirrors { name, value: shown() })?;
            }
            THRESHOLD => self.threshold = size()?,
            CACHE => self.cache = word(name, text, [Cache::None, Cache::Delegation], Cache::name)?,
            _ => self.distribution = word(name, text, DistributionId::ALL, DistributionId::name)?,
        }
        Ok(())
    }

    /// The text of the part called `name`, as [`Policy::set`] takes it; `None` when no part is called so.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            STRIPE_UNIT => format_size(self.stripe_unit),
            STRIPE_COUNT => self.stripe_count.to_string(),
            MIRRORS => self.mirrors.to_string(),
            THRESHOLD => format_size(self.threshold),
            CACHE => self.cache.name().to_owned(),
            DISTRIBUTION => self.distribution.name().to_owned(),
            _ => return None,
        })
    }

    /// This policy with a directory's xattrs laid over it. Xattrs that are no part of a policy are passed over; a part
    /// that does not parse is an error, as it can only have been written past the checks.
    pub fn with_xattrs<'a>(
        mut self,
        xattrs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, PolicyError> {
        for (name, value) in xattrs {
            if is_policy_name(name) {
                self.set(name, value)?;
            }
        }
        Ok(self)
    }
}

fn word<T: Copy, const N: usize>(
    name: &'static str,
    text: &str,
    all: [T; N],
    name_of: impl Fn(T) -> &'static str,
) -> Result<T, PolicyError> {
    let found = all.into_iter().find(|w| name_of(*w) == text);
    found.ok_or_else(|| {
        let allowed = all.into_iter().map(&name_of).collect::<Vec<_>>().join(", ");
        PolicyError::Word { name, value: text.chars().take(80).collect(), allowed }
    })
}

const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// A size in bytes: decimal digits, optionally followed by K, M, G or T (powers of 1024; any case; `iB` or `B` may
/// follow the letter). `None` for anything else and for sizes over 64 bits.
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

/// The shortest text that [`parse_size`] reads back to exactly `size`.
pub fn format_size(size: u64) -> String {
    let fits = SUFFIXES.iter().rev().find(|(_, shift)| size > 0 && size.is_multiple_of(1 << shift));
    match fits {
        Some((letter, shift)) => format!("{}{letter}", size >> shift),
        None => size.to_string(),
    }
}
