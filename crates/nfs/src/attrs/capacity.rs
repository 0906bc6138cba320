//! Capacity attributes (`files_*`, `space_*`): the inodes and bytes of the whole file system, free and in total.

use super::form::put_u64;
use super::{Row, row};
use xdr::Reader;

pub(super) const FILES_AVAIL: Row = row!(FATTR4_FILES_AVAIL, "files_avail", files_avail, put_u64, Reader::u64);
pub(super) const FILES_FREE: Row = row!(FATTR4_FILES_FREE, "files_free", files_free, put_u64, Reader::u64);
pub(super) const FILES_TOTAL: Row = row!(FATTR4_FILES_TOTAL, "files_total", files_total, put_u64, Reader::u64);
pub(super) const SPACE_AVAIL: Row = row!(FATTR4_SPACE_AVAIL, "space_avail", space_avail, put_u64, Reader::u64);
pub(super) const SPACE_FREE: Row = row!(FATTR4_SPACE_FREE, "space_free", space_free, put_u64, Reader::u64);
pub(super) const SPACE_TOTAL: Row = row!(FATTR4_SPACE_TOTAL, "space_total", space_total, put_u64, Reader::u64);
