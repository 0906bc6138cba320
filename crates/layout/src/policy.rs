//! The policy: how files are laid out, and how clients read and write them.
//!
//! A policy has [parts](Part) with names of their own, `stripe_unit` and so on. Each can be set in several places
//! ([`Origin`]), by the same text everywhere: as extended attribute of a directory (`user.weir.stripe_unit`; NFS carries the
//! names without their `user.` prefix, RFC 8276 §5), as option of a mount, in the environment, or for one open file. The place
//! that comes last in the order of [`Origin`] counts ([`merge`]).
//!
//! A new directory gets a copy of its parent's policy xattrs when it is made, so that nobody walks up the tree; changing a
//! directory's policy later changes no directory below it. How its bytes lie ([`Part::is_placement`]) a file takes from its
//! directory when it is made and keeps for life; all other parts hold from the next open on.

mod origin;
mod settings;
mod values;

pub use origin::{Effective, Layers, Origin, merge};
pub use values::{Access, FULL, LayoutWhen, NEVER, Sharing, format_size, format_time, parse_size, parse_time};

use crate::distributions::DistributionId;
use crate::threshold::Rule;
use std::time::Duration;
use types::limits::STRIPE_COUNT_MAX;

/// What the names of all policy xattrs begin with.
pub const PREFIX: &str = "weir.";

/// Most copies of a file.
pub const MIRRORS_MAX: u32 = 2;

/// Longest list of settings that is read from a peer, in bytes.
pub const TEXT_MAX: usize = 4096;

/// The table of parts: name, field with its type, value without any policy, what its text may be, how it is read and written.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident $field:ident: $type:ty = $default:expr, $parse:expr, $show:expr, $allowed:expr;)*) => {
        /// One part of a policy.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Part {
            $($(#[$doc])* $part,)*
        }

        /// How files are laid out, read and written.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct Policy {
            $($(#[$doc])* pub $field: $type,)*
        }

        /// Some parts of a policy: those that one place sets.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct Settings {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Default for Policy {
            fn default() -> Self {
                Policy { $($field: $default,)* }
            }
        }

        impl Part {
            /// Every part, in the order to show them.
            pub const ALL: &[Part] = &[$(Part::$part),*];
            /// The names of all parts.
            pub const NAMES: &[&str] = &[$(stringify!($field)),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Part::$part => stringify!($field),)*
                }
            }

            /// What its text may be.
            pub fn allowed(self) -> String {
                match self {
                    $(Part::$part => $allowed.into(),)*
                }
            }
        }

        impl Policy {
            /// The text of a part, as [`Settings::set`] takes it.
            pub fn get(&self, part: Part) -> String {
                match part {
                    $(Part::$part => $show(self.$field),)*
                }
            }

            /// This policy with the parts that are set laid over it.
            pub fn with(self, set: &Settings) -> Policy {
                Policy { $($field: set.$field.unwrap_or(self.$field),)* }
            }

            /// Takes one part from another policy.
            fn take(&mut self, part: Part, from: &Settings) {
                match part {
                    $(Part::$part => self.$field = from.$field.unwrap_or(self.$field),)*
                }
            }
        }

        impl Settings {
            /// Whether a part is set.
            pub fn has(&self, part: Part) -> bool {
                match part {
                    $(Part::$part => self.$field.is_some(),)*
                }
            }

            /// The text of a part that is set.
            pub fn get(&self, part: Part) -> Option<String> {
                match part {
                    $(Part::$part => self.$field.map($show),)*
                }
            }

            /// Sets no part any more but those that `keep` says.
            pub fn retain(&mut self, keep: impl Fn(Part) -> bool) {
                $(if !keep(Part::$part) {
                    self.$field = None;
                })*
            }

            /// Lays other settings over these.
            pub fn lay(&mut self, over: &Settings) {
                $(self.$field = over.$field.or(self.$field);)*
            }

            /// Reads a part; whether it could be.
            fn read(&mut self, part: Part, text: &str) -> bool {
                match part {
                    $(Part::$part => match $parse(text) {
                        Some(value) => {
                            self.$field = Some(value);
                            true
                        }
                        None => false,
                    },)*
                }
            }
        }
    };
}

parts! {
    /// Bytes that go to one iod before the next. With the default, files of up to 1 MiB are one object, and one request moves
    /// them.
    StripeUnit stripe_unit: u64 = 1 << 20, values::unit, format_size, "a multiple of 64 from 64 to 1G, as in 64K or 1M";
    /// Over how many iods a file is striped; 0 for all.
    StripeCount stripe_count: u32 = 0, values::stripe_count, values::number, format!("a number from 0 (all iods) to {STRIPE_COUNT_MAX}");
    /// Copies of a file, each on iods of its own.
    Mirrors mirrors: u32 = 1, values::mirrors, values::number, format!("a number of copies from 1 to {MIRRORS_MAX}");
    /// How bytes are dealt out to the iods.
    Distribution distribution: DistributionId = DistributionId::SimpleStripe, values::distribution, values::distribution_name,
        values::distribution_names();
    /// When a client asks for the layout of a file.
    Layout layout: LayoutWhen = LayoutWhen::Auto, values::layout, values::layout_text,
        "auto, open, first-io or a size, as in 1M: the length that a file must have";
    /// Writes that gather to fewer bytes go through the mgr, others straight to the iods.
    WriteThreshold write_threshold: Rule = Rule::Fixed(0), values::rule, values::rule_text,
        "a size, as in 64K or 1M, nor 0 (never through the mgr), max (always) or auto";
    /// Reads of fewer bytes go through the mgr.
    ReadThreshold read_threshold: u64 = 0, values::threshold, values::threshold_text,
        "a size, as in 64K or 1M, nor 0 (never through the mgr) or max (always)";
    /// Which caches are used.
    Access access: Access = Access::Direct, Access::from_name, values::access_text, "page, direct or odirect";
    /// What clients that use a file at the same time see of one another: with `coherent` what a write returned for is met by all that follows, with
    /// `close-to-open` what was closed is met by what is opened afterwards.
    Sharing sharing: Sharing = Sharing::Coherent, Sharing::from_name, values::sharing_text, "coherent or close-to-open";
    /// How many bytes of a file gather in a client before they leave; `full`: a whole request for each iod.
    GatherSize gather_size: u64 = FULL, values::gather_size, values::gather_size_text, "a size, as in 64K or 1M, nor full";
    /// How long they gather before they leave by themselves, to be durable some seconds later; `max`: until there are enough of them, or somebody
    /// needs them.
    GatherDelay gather_delay: Duration = NEVER, parse_time, format_time, "a time, as in 5ms or 2s, nor max";
    /// How long the mgr may keep small writes to join them; set in its configuration alone (`gather_delay_ms`).
    MgrGatherDelay mgr_gather_delay: Duration = Duration::from_millis(2), parse_time, format_time, "a time, as in 5ms or 2s";
    /// How far is read ahead of who reads in order or in strides, by the client or, with `access=page`, by the page cache.
    ReadAhead read_ahead: u64 = 1 << 20, values::read_ahead, format_size, "a size up to 64M, as in 128K or 1M";
}

/// A setting that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// No part has this name.
    #[error("no part of a policy is called {0:?}; there are {names}", names = Part::NAMES.join(", "))]
    Name(String),
    /// The text is not a value of the part.
    #[error("{name}: {value:?} is not {allowed}", name = part.name(), allowed = part.allowed())]
    Value {
        /// The part.
        part: Part,
        /// What was given.
        value: String,
    },
    /// The part is not set there.
    #[error("{name} is not set {place}; {hint}", name = part.name(), place = origin.place(), hint = part.places())]
    Place {
        /// The part.
        part: Part,
        /// Where it was given.
        origin: Origin,
    },
    /// An element of a list is not of the form `name=value`.
    #[error("{0:?} is not of the form NAME=VALUE, as in write_threshold=32K")]
    Form(String),
}

/// Whether an xattr of this name belongs to the policy (also one that this version does not know).
pub fn is_policy_name(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

impl Part {
    /// The part of this name, as it stands in options or, with its prefixes, as extended attribute.
    pub fn named(name: &[u8]) -> Result<Part, PolicyError> {
        let short = name.strip_prefix(b"user.").unwrap_or(name);
        let short = short.strip_prefix(PREFIX.as_bytes()).unwrap_or(short);
        let found = Part::ALL.iter().find(|part| part.name().as_bytes() == short);
        found.copied().ok_or_else(|| PolicyError::Name(shown(name)))
    }

    /// The name of its xattr, as NFS carries it.
    pub fn xattr(self) -> String {
        format!("{PREFIX}{}", self.name())
    }

    /// Whether it says how the bytes of a file lie, which is decided when the file is made.
    pub fn is_placement(self) -> bool {
        matches!(self, Part::StripeUnit | Part::StripeCount | Part::Mirrors | Part::Distribution)
    }

    /// Whether it can be set there.
    pub fn is_set_by(self, origin: Origin) -> bool {
        match self {
            Part::MgrGatherDelay => origin <= Origin::Server,
            _ if self.is_placement() => origin <= Origin::Directory,
            // The page cache of a mount reads all files ahead alike.
            Part::ReadAhead => ![Origin::Directory, Origin::File, Origin::Open].contains(&origin),
            _ => true,
        }
    }

    /// Where it can be set, for people.
    fn places(self) -> &'static str {
        match self {
            Part::MgrGatherDelay => "set gather_delay_ms in the configuration of the mgr",
            Part::ReadAhead => "set it for a mount",
            _ => "set it for the directory: files keep what they were made with",
        }
    }
}

/// Bytes for people, as far as they fit.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}
