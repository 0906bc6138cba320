//! Fuzz target for layout records, layout and device bodies, and policy xattrs: each decoded value is encoded and
//! decoded again without a change.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use layout::kinds::native::{Body, Device, Record, Update};
use layout::kinds::{files, flexfiles, log};
use layout::policy::Part;
use layout::{NetAddress, Origin, Settings, Unassigned};
use std::fmt::Debug;
use types::ByteRange;
use xdr::Xdr;

/// Decodes `data` with every decoder of the crate `layout`.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    value::<Device>(&bytes);
    value::<Unassigned>(&bytes);
    value::<Update>(&bytes);
    value::<NetAddress>(&bytes);
    value::<files::Body>(&bytes);
    value::<files::Device>(&bytes);
    value::<flexfiles::Body>(&bytes);
    value::<flexfiles::DataServer>(&bytes);
    value::<flexfiles::Device>(&bytes);
    let _ = flexfiles::faults(&bytes);
    if let Some(record) = value::<Record>(&bytes) {
        record.distribution().expect("a record that decodes has a geometry");
    }
    value::<log::Record>(&bytes);
    if let Some(body) = value::<Body>(&bytes) {
        let distribution = body.distribution().expect("a body that decodes has a geometry");
        let range = ByteRange { offset: body.object.file.0 >> 2, len: u64::from(body.generation.0) };
        let mapped: u64 = distribution.pieces(range).take(64).map(|piece| piece.file.len).sum();
        assert!(mapped <= range.len);
    }
    for part in Part::ALL {
        let mut settings = Settings::default();
        if settings.set(Origin::Server, part.name().as_bytes(), data).is_ok() {
            assert_eq!(Settings::parse(Origin::Server, &settings.text()), Ok(settings));
        }
    }
    let told = Settings::of_peer(Origin::Server, data);
    assert_eq!(Settings::of_peer(Origin::Server, told.text().as_bytes()), told);
}

fn value<T: Xdr + PartialEq + Debug>(data: &Bytes) -> Option<T> {
    let value = T::from_bytes(data).ok()?;
    assert_eq!(T::from_bytes(&value.to_bytes()).as_ref(), Ok(&value));
    Some(value)
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
