//! The registry of layout kinds: what a `layouttype4` number, its bodies and its stored record mean.
//!
//! NFS carries a layout as a kind number and an opaque body, the namespace stores it as a kind number and an opaque
//! record; only who serves or uses a layout looks inside, and does so here. The kinds of [`KindId`] are those that this
//! client uses; the others are offered to the clients of kernels, over the same objects.

pub mod files;
pub mod flexfiles;
pub mod native;

use bytes::Bytes;
use xdr::{Malformed, Xdr};

/// A layout kind that this version speaks; the value is its `layouttype4`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum KindId {
    /// Objects on iods, reached by the native data program.
    Native = native::KIND,
}

impl KindId {
    /// Every kind, in the order a client prefers them.
    pub const ALL: [KindId; 1] = [KindId::Native];

    /// The kind of this `layouttype4`, `None` for one this version does not speak.
    pub fn from_number(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.number() == n)
    }

    /// The `layouttype4`.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The name people and counters use.
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
