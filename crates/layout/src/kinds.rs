//! The registry of layout kinds. A kind defines the meaning of a `layouttype4` number, of the layout bodies, and of
//! the stored layout record.
//!
//! NFS carries a layout as a kind number and an opaque body. The namespace stores a layout as a kind number and an
//! opaque record. The mgr and the clients decode bodies and records with this module. Weir's client uses the kinds of
//! [`PREFERRED`]. The mgr offers the other kinds to kernel NFS clients. Layouts of all kinds lead to the same objects
//! on the iods.

pub mod files;
pub mod flexfiles;
pub mod native;

pub use native::log;

use xdr::Xdr;

/// The layout kinds that Weir's client uses, in order of preference.
pub const PREFERRED: [KindId; 1] = [native::Native::ID];

/// A layout kind that Weir's client can use, with the types of its layout bodies and device address bodies.
pub trait Kind: Send + Sync + 'static {
    /// The `layouttype4` number and the name of the kind.
    const ID: KindId;
    /// The type of a layout body (`loc_body`) of this kind.
    type Body: Xdr + Send;
    /// The type of a device address body (`da_addr_body`) of this kind.
    type Device: Xdr + Send;
}

/// The number and the name of a layout kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KindId {
    number: u32,
    name: &'static str,
}

impl KindId {
    /// Returns the id of a layout kind: its `layouttype4` number and its name.
    pub const fn new(number: u32, name: &'static str) -> Self {
        KindId { number, name }
    }

    /// Returns the layout kind with this `layouttype4`; `None` if Weir's client does not use it (see [`PREFERRED`]).
    pub fn from_number(n: u32) -> Option<Self> {
        PREFERRED.into_iter().find(|kind| kind.number == n)
    }

    /// Returns the `layouttype4` number of the kind.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Returns the name of the layout kind, for messages and counters.
    pub fn name(self) -> &'static str {
        self.name
    }
}
