//! The registry of layout kinds: the meaning of a `layouttype4` number, its bodies and its stored record.
//!
//! NFS carries a layout as a kind number and an opaque body. The namespace stores it as a kind number and an opaque
//! record. Only the servers and clients of a layout decode them, with this module. Weir's client uses the kinds of
//! [`KindId`]. The mgr offers the other kinds to kernel NFS clients, over the same objects.

pub mod files;
pub mod flexfiles;
pub mod native;

use bytes::Bytes;
use xdr::{Malformed, Xdr};

/// A layout kind that Weir's client uses; the value is its `layouttype4`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum KindId {
    /// Objects on iods, reached by the native data program.
    Native = native::KIND,
}

impl KindId {
    /// Every kind, in the order a client prefers them.
    pub const ALL: [KindId; 1] = [KindId::Native];

    /// Returns the kind with this `layouttype4`; `None` if this version does not use it.
    pub fn from_number(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.number() == n)
    }

    /// Returns the `layouttype4`.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the name in messages and counters.
    pub fn name(self) -> &'static str {
        match self {
            KindId::Native => "native",
        }
    }
}

/// A layout body (`loc_body`) of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Of the native kind.
    Native(native::Body),
}

impl Body {
    /// Decodes the body of a layout of this kind.
    pub fn decode(kind: KindId, body: &Bytes) -> Result<Self, Malformed> {
        match kind {
            KindId::Native => native::Body::from_bytes(body).map(Body::Native),
        }
    }
}

/// A device address body (`da_addr_body`) of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// Of the native kind.
    Native(native::Device),
}

impl Device {
    /// Decodes the address of a device of this kind.
    pub fn decode(kind: KindId, body: &Bytes) -> Result<Self, Malformed> {
        match kind {
            KindId::Native => native::Device::from_bytes(body).map(Device::Native),
        }
    }
}
