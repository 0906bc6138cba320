//! A check by FIEMAP of which ranges of a file have storage.

use std::ffi::c_void;
use std::fs::File;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// Number of extents that one call asks for.
const EXTENTS: usize = 32;
/// How often the file system is asked for more extents; a range with more pieces counts as not stored.
const ASKED_MAX: usize = 64;

/// `struct fiemap_extent` of Linux.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// The fixed part of `struct fiemap`, whose size is encoded in the ioctl number.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap` with space for some extents.
#[repr(C)]
struct Map {
    head: Head,
    extents: [Extent; EXTENTS],
}

// SAFETY: the call reads the head, and writes the head and at most `count` extents after it, which `Map` can hold.
unsafe impl Ioctl for &mut Map {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Head>(b'f', 11)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut::<Map>(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Returns whether extents cover a whole range, written or only reserved.
pub(super) fn cover(file: &File, offset: u64, len: u64) -> Result<bool, Errno> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    for _ in 0..ASKED_MAX {
        if at >= end {
            return Ok(true);
        }
        let head = Head { start: at, length: end - at, flags: 0, mapped: 0, count: EXTENTS as u32, reserved: 0 };
        let mut map = Map { head, extents: [Extent::default(); EXTENTS] };
        // SAFETY: `Map` has the layout that this call expects, see above.
        unsafe { rustix::ioctl::ioctl(file, &mut map) }?;
        let before = at;
        for extent in map.extents.iter().take(map.head.mapped as usize) {
            if extent.logical > at {
                return Ok(false);
            }
            at = at.max(extent.logical.saturating_add(extent.length));
        }
        if at == before {
            return Ok(false);
        }
    }
    Ok(at >= end)
}
