//! The policy: the settings that say how files are laid out, and how clients read and write them.
//!
//! A policy consists of named [settings](Part), such as `stripe_unit`. Each setting can be set in several sources
//! ([`Origin`]), always with the same syntax. Examples are an extended attribute of a directory, a mount option, and
//! the environment. The extended attribute of the stripe unit is `user.weir.stripe_unit`; NFS carries names without
//! the `user.` prefix (RFC 8276 §5). The last source in the order of [`Origin`] overrides all other sources
//! ([`merge`]).
//!
//! A new directory gets a copy of its parent's policy attributes, so that no lookup walks up the tree. A later change
//! of a directory's policy changes no directory below it. A new file takes its placement ([`Part::is_placement`])
//! from its directory. A later change of the policy does not change the placement of this file. A change of any other
//! setting takes effect at the next open.

mod origin;
mod settings;
mod values;

pub use origin::{Effective, Layers, Origin, merge};
pub use values::{
    Access, FULL, LayoutWhen, NEVER, Sharing, StoredLayout, format_size, format_time, parse_size, parse_time,
};

use crate::distributions::DistributionId;
use crate::threshold::Rule;
use std::time::Duration;
use types::limits::STRIPE_COUNT_MAX;

/// Prefix of the names of all policy attributes, as NFS carries them.
pub const PREFIX: &str = "weir.";

/// Maximum number of copies of a file.
pub const MIRRORS_MAX: u32 = 2;

/// Deprecated values of policy settings, which this release still accepts, each with its replacement.
const FORMER_VALUES: &[(Part, &str, &str)] = &[(Part::Access, "odirect", "unbuffered")];

/// Maximum length in bytes of a settings text that a client or the mgr receives from its peer.
pub const TEXT_MAX: usize = 4096;

/// Defines the policy settings: for each setting its name, its field and type, the default, the parser, the formatter,
/// and a description of the valid text.
macro_rules! parts {
    ($($(#[$doc:meta])* $part:ident $field:ident: $type:ty = $default:expr, $parse:expr, $show:expr, $allowed:expr;)*) => {
        /// One setting of a policy, such as the stripe unit.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Part {
            $($(#[$doc])* $part,)*
        }

        /// A complete policy: a value for every setting.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct Policy {
            $($(#[$doc])* pub $field: $type,)*
        }

        /// The policy settings that one source sets; all other settings are `None`.
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
            /// All policy settings, in the order in which commands show them.
            pub const ALL: &[Part] = &[$(Part::$part),*];
            /// The names of all policy settings.
            pub const NAMES: &[&str] = &[$(stringify!($field)),*];

            /// Returns the name of the policy setting, as users write it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Part::$part => stringify!($field),)*
                }
            }

            /// Returns a description of the texts that the policy setting accepts, for error messages.
            pub fn allowed(self) -> String {
                match self {
                    $(Part::$part => $allowed.into(),)*
                }
            }
        }

        impl Policy {
            /// Returns the value of a policy setting as text, in the syntax of [`Settings::set`].
            pub fn get(&self, part: Part) -> String {
                match part {
                    $(Part::$part => $show(self.$field),)*
                }
            }

            /// Returns this policy, with each setting that `set` contains replaced by its value in `set`.
            pub fn with(self, set: &Settings) -> Policy {
                Policy { $($field: set.$field.unwrap_or(self.$field),)* }
            }

            /// Replaces the value of one policy setting with its value in `from`, if `from` has a value for this
            /// setting.
            fn take(&mut self, part: Part, from: &Settings) {
                match part {
                    $(Part::$part => self.$field = from.$field.unwrap_or(self.$field),)*
                }
            }
        }

        impl Settings {
            /// Returns whether the policy setting has a value in this [`Settings`].
            pub fn has(&self, part: Part) -> bool {
                match part {
                    $(Part::$part => self.$field.is_some(),)*
                }
            }

            /// Returns the value of a policy setting as text; `None` if the setting has no value in this [`Settings`].
            pub fn get(&self, part: Part) -> Option<String> {
                match part {
                    $(Part::$part => self.$field.map($show),)*
                }
            }

            /// Removes the policy settings for which `keep` returns false.
            pub fn retain(&mut self, keep: impl Fn(Part) -> bool) {
                $(if !keep(Part::$part) {
                    self.$field = None;
                })*
            }

            /// Replaces the value of each policy setting that `over` contains with the value in `over`.
            pub fn lay(&mut self, over: &Settings) {
                $(self.$field = over.$field.or(self.$field);)*
            }

            /// Parses `text` and sets the policy setting to the result. Returns whether the text is valid.
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
    /// The stored kind of new files. With `stripe`, the bytes of a file are striped over the iods. With `log`, each
    /// client that writes a file appends the bytes to a data log of its own, and an index says where each byte is.
    Layout layout: StoredLayout = StoredLayout::Stripe, StoredLayout::from_name, values::stored_layout_text,
        "stripe or log (the setting layout_when says when a client requests the layout)";
    /// Stripe unit: the number of consecutive bytes on one iod before the next iod follows. With the default of 1 MiB,
    /// a file of up to 1 MiB is one object, and one request reads or writes the whole file.
    StripeUnit stripe_unit: u64 = 1 << 20, values::unit, format_size, "a multiple of 64 from 64 to 1G, such as 64K or 1M";
    /// Number of iods over which a file is striped; 0 for all iods.
    StripeCount stripe_count: u32 = 0, values::stripe_count, values::number, format!("a number from 0 (all iods) to {STRIPE_COUNT_MAX}");
    /// Number of copies of a file. Each copy is on different iods.
    Mirrors mirrors: u32 = 1, values::mirrors, values::number, format!("a number of copies from 1 to {MIRRORS_MAX}");
    /// The distribution, which maps the bytes of a file to bytes of objects on iods.
    Distribution distribution: DistributionId = DistributionId::SimpleStripe, values::distribution, values::distribution_name,
        values::distribution_names();
    /// When a client requests the layout of a file (LAYOUTGET).
    LayoutWhen layout_when: LayoutWhen = LayoutWhen::Auto, values::layout_when, values::layout_when_text,
        "auto, open, first-io or a file size such as 1M";
    /// The write threshold: gathered writes of fewer bytes than this threshold take the mgr path; all other writes
    /// take the direct path to the iods.
    WriteThreshold write_threshold: Rule = Rule::Fixed(0), values::rule, values::rule_text,
        "a size such as 64K or 1M, 0 (never through the mgr), max (always) or auto";
    /// The read threshold: reads of fewer bytes than this threshold take the mgr path; all other reads take the
    /// direct path to the iods.
    ReadThreshold read_threshold: u64 = 0, values::threshold, values::threshold_text,
        "a size such as 64K or 1M, 0 (never through the mgr) or max (always)";
    /// The access method: whether reads and writes use the page cache and write gathering.
    Access access: Access = Access::Direct, Access::from_name, values::access_text, "page, direct or unbuffered";
    /// The consistency between clients that use a file at the same time. With `coherent`, every call sees all writes
    /// that returned before the call. With `close-to-open`, an open sees all writes that other clients made before they
    /// closed the file.
    Sharing sharing: Sharing = Sharing::Coherent, Sharing::from_name, values::sharing_text, "coherent or close-to-open";
    /// Number of bytes of a file that a client gathers before the client sends them. `full` means as many bytes as one
    /// request of maximum size to each iod of the file can send.
    GatherSize gather_size: u64 = FULL, values::gather_size, values::gather_size_text, "a size such as 64K or 1M, or full";
    /// Time for which a client gathers writes before it sends the data; the data become durable some seconds later.
    /// With `max`, the client sends the data only when it has gathered `gather_size` bytes or when another operation
    /// needs the data on the servers.
    GatherDelay gather_delay: Duration = NEVER, parse_time, format_time, "a time such as 5ms or 2s, or max";
    /// How long the mgr may hold small writes in memory to join them. Only the configuration file of the mgr can
    /// contain this setting (`mgr_gather_delay_ms`).
    MgrGatherDelay mgr_gather_delay: Duration = Duration::from_millis(2), parse_time, format_time, "a time such as 5ms or 2s";
    /// Maximum read-ahead for sequential and strided readers, in bytes. With `access=page`, the kernel's page cache
    /// reads ahead; with every other access method, the client reads ahead.
    ReadAhead read_ahead: u64 = 1 << 20, values::read_ahead, format_size, "a size up to 64M, such as 128K or 1M";
}

/// The reason why a policy setting or a list of policy settings is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// No policy setting has this name. The variant contains the name.
    #[error("a policy has no part {0:?}; its parts are {names}", names = Part::NAMES.join(", "))]
    Name(String),
    /// The text in `value` is not a valid value of the policy setting `part`.
    #[error("{name}: {value:?} is not valid; write {allowed}", name = part.name(), allowed = part.allowed())]
    Value {
        /// The policy setting for which the text is invalid.
        part: Part,
        /// The text that is not a valid value of the policy setting.
        value: String,
    },
    /// The source `origin` cannot contain the policy setting `part`. For example, a mount option cannot set
    /// `mgr_gather_delay`.
    #[error("{name} cannot be set {place}; {hint}", name = part.name(), place = origin.place(), hint = part.places())]
    Place {
        /// The policy setting that the source cannot contain.
        part: Part,
        /// The source in which the setting occurs.
        origin: Origin,
    },
    /// An element of a settings list is not of the form `name=value`. The variant contains the element.
    #[error("{0:?} is not of the form NAME=VALUE: write, for example, write_threshold=32K")]
    Form(String),
}

/// Returns whether `name` is a policy attribute: whether it has the policy prefix, even if this version of Weir has no
/// such policy setting.
pub fn is_policy_name(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

impl Part {
    /// Returns the policy setting with this name. `name` may be a plain name, or the name of an extended attribute with
    /// its prefixes.
    pub fn named(name: &[u8]) -> Result<Part, PolicyError> {
        let found = Part::ALL.iter().find(|part| part.name().as_bytes() == without_prefix(name)).copied();
        found.ok_or_else(|| PolicyError::Name(shown(name)))
    }

    /// Returns the replacement for a deprecated value of this policy setting, so that the caller can warn the user.
    /// `None` if `former` is not deprecated.
    pub fn present_value(self, former: &str) -> Option<&'static str> {
        FORMER_VALUES.iter().find(|(part, text, _)| (*part, *text) == (self, former)).map(|(.., present)| *present)
    }

    /// Returns the name of the extended attribute that holds this policy setting, as NFS carries the name.
    pub fn xattr(self) -> String {
        format!("{PREFIX}{}", self.name())
    }

    /// Returns whether the policy setting belongs to placement: how the bytes of a file lie on iods. A change of the
    /// policy does not change the placement of existing files.
    pub fn is_placement(self) -> bool {
        matches!(self, Part::Layout | Part::StripeUnit | Part::StripeCount | Part::Mirrors | Part::Distribution)
    }

    /// Returns whether the source `origin` can contain this policy setting.
    pub fn is_set_by(self, origin: Origin) -> bool {
        match self {
            Part::MgrGatherDelay => origin <= Origin::Server,
            _ if self.is_placement() => origin <= Origin::Directory,
            // A directory or file cannot set the read-ahead, because the kernel's page cache has one read-ahead setting
            // per mount.
            Part::ReadAhead => ![Origin::Directory, Origin::File, Origin::Open].contains(&origin),
            _ => true,
        }
    }

    /// Returns a phrase for error messages that says where users can set the policy setting.
    fn places(self) -> &'static str {
        match self {
            Part::MgrGatherDelay => "set mgr_gather_delay_ms in the configuration of the mgr",
            Part::ReadAhead => "set it for a mount",
            Part::Layout => {
                "set it for the directory: a file keeps the value from its creation (layout_when says when a client \
                 requests the layout)"
            }
            _ => "set it for the directory: a file keeps the value from its creation",
        }
    }
}

fn without_prefix(name: &[u8]) -> &[u8] {
    let short = name.strip_prefix(b"user.").unwrap_or(name);
    short.strip_prefix(PREFIX.as_bytes()).unwrap_or(short)
}

/// Returns the deprecated values in a settings text, each with its replacement.
pub fn former_values(text: &str) -> impl Iterator<Item = (&str, &'static str)> {
    text.split(',').filter_map(|element| element.split_once('=')).filter_map(|(name, value)| {
        let (part, value) = (Part::named(name.trim().as_bytes()).ok()?, value.trim());
        part.present_value(value).map(|present| (value, present))
    })
}

/// Returns bytes as text for error messages, truncated to 80 bytes.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}
