//! A check by the FIEMAP ioctl: whether the file system has allocated storage for every byte of a file range.

use std::ffi::c_void;
use std::fs::File;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// Maximum number of extents that one FIEMAP call returns.
const EXTENTS: usize = 32;
/// Maximum number of FIEMAP calls for one range. A range with more extents than these calls return counts as not
/// allocated.
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

/// The fields of `struct fiemap` before its extent array. The ioctl number encodes the size of these fields.
#[repr(C)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap` with an array of [`EXTENTS`] extents.
#[repr(C)]
struct Map {
    head: Head,
    extents: [Extent; EXTENTS],
}

// SAFETY: FS_IOC_FIEMAP reads `Head` at the pointer, and writes `Head` and at most `count` extents behind it. `Map` has
// exactly this layout, and callers set `count` to the number of its extents.
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

/// Returns whether extents cover every byte of a range. Allocated but unwritten extents count.
pub(super) fn cover(file: &File, offset: u64, len: u64) -> Result<bool, Errno> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    for _ in 0..ASKED_MAX {
        if at >= end {
            return Ok(true);
        }
        let head = Head { start: at, length: end - at, flags: 0, mapped: 0, count: EXTENTS as u32, reserved: 0 };
        let mut map = Map { head, extents: [Extent::default(); EXTENTS] };
        // SAFETY: FS_IOC_FIEMAP writes only into `map`, because `count` is the number of extents that `map` has memory
        // for.
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
