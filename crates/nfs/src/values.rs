//! Attribute values of a file in one struct, which the server encodes and the client decodes.

use crate::attrs::Mask;
use crate::fs::{FsInfo, PolicyText, Threshold};
use bytes::Bytes;
use types::{Attrs, FileId, FileKind, StatFs, Timestamp};
use wire::nfs4::{fsid4, nfsstat4};

/// The first layout type number that is reserved for private use (RFC 8881 §3.3.13).
const LAYOUT_TYPES_PRIVATE: u32 = 0x8000_0000;

/// Attribute values of a file; `None` means that a value is unknown or was not sent.
///
/// Units are those of the attribute definitions (RFC 8881 §5.8, §5.12).
#[derive(Clone, PartialEq, Debug, Default)]
#[allow(missing_docs)] // each field has the name of its attribute
pub struct Values {
    pub supported_attrs: Option<Mask>,
    pub kind: Option<FileKind>,
    pub fh_expire_type: Option<u32>,
    pub change: Option<u64>,
    pub size: Option<u64>,
    pub link_support: Option<bool>,
    pub symlink_support: Option<bool>,
    pub named_attr: Option<bool>,
    pub fsid: Option<fsid4>,
    pub unique_handles: Option<bool>,
    pub lease_time: Option<u32>,
    pub rdattr_error: Option<nfsstat4>,
    pub aclsupport: Option<u32>,
    pub cansettime: Option<bool>,
    pub case_insensitive: Option<bool>,
    pub case_preserving: Option<bool>,
    pub chown_restricted: Option<bool>,
    pub filehandle: Option<Bytes>,
    pub fileid: Option<u64>,
    pub files_avail: Option<u64>,
    pub files_free: Option<u64>,
    pub files_total: Option<u64>,
    pub homogeneous: Option<bool>,
    pub maxfilesize: Option<u64>,
    pub maxlink: Option<u32>,
    pub maxname: Option<u32>,
    pub maxread: Option<u64>,
    pub maxwrite: Option<u64>,
    pub mode: Option<u32>,
    pub no_trunc: Option<bool>,
    pub numlinks: Option<u32>,
    pub owner: Option<u32>,
    pub owner_group: Option<u32>,
    pub rawdev: Option<(u32, u32)>,
    pub space_avail: Option<u64>,
    pub space_free: Option<u64>,
    pub space_total: Option<u64>,
    pub space_used: Option<u64>,
    pub time_access: Option<Timestamp>,
    pub time_create: Option<Timestamp>,
    pub time_delta: Option<Timestamp>,
    pub time_metadata: Option<Timestamp>,
    pub time_modify: Option<Timestamp>,
    pub mounted_on_fileid: Option<u64>,
    pub fs_layout_types: Option<Vec<u32>>,
    pub layout_blksize: Option<u32>,
    pub mdsthreshold: Option<Vec<Threshold>>,
    pub suppattr_exclcreat: Option<Mask>,
    pub clone_blksize: Option<u32>,
    pub change_attr_type: Option<u32>,
    pub xattr_support: Option<bool>,
    pub open_arguments: Option<[Mask; 5]>,
    pub weir_policy: Option<PolicyText>,
    pub weir_queue_delay: Option<u64>,
    pub weir_settled: Option<u64>,
    pub weir_writer: Option<bool>,
}

impl Values {
    /// Sets the attributes that describe this file or directory.
    pub fn set_attrs(&mut self, attrs: &Attrs) {
        self.kind = Some(attrs.kind);
        self.change = Some(attrs.change);
        self.size = Some(attrs.size);
        self.fileid = Some(attrs.id.0);
        self.mounted_on_fileid = Some(attrs.id.0);
        self.mode = Some(attrs.mode);
        self.numlinks = Some(attrs.nlink);
        self.owner = Some(attrs.uid);
        self.owner_group = Some(attrs.gid);
        self.rawdev = Some(attrs.rdev);
        self.space_used = Some(attrs.used);
        self.time_access = Some(attrs.atime);
        self.time_create = Some(attrs.btime);
        self.time_metadata = Some(attrs.ctime);
        self.time_modify = Some(attrs.mtime);
    }

    /// Sets the attributes that have one value for the whole file system.
    pub fn set_info(&mut self, info: &FsInfo) {
        self.lease_time = Some(info.lease_secs);
        self.maxfilesize = Some(info.max_file_size);
        self.maxlink = Some(info.max_link);
        self.maxname = Some(info.max_name);
        self.maxread = Some(info.max_read);
        self.maxwrite = Some(info.max_write);
        // Leave out layout types for private use, because clients other than Weir's may not be able to decode them.
        let known = info.layout_types.iter().copied().filter(|kind| *kind < LAYOUT_TYPES_PRIVATE);
        self.fs_layout_types = Some(known.collect());
        self.layout_blksize = Some(info.layout_block);
        self.xattr_support = Some(info.xattrs);
    }

    /// Sets the capacity attributes of the file system.
    pub fn set_statfs(&mut self, stat: &StatFs) {
        self.files_avail = Some(stat.files_free);
        self.files_free = Some(stat.files_free);
        self.files_total = Some(stat.files_total);
        self.space_avail = Some(stat.bytes_avail);
        self.space_free = Some(stat.bytes_free);
        self.space_total = Some(stat.bytes_total);
    }

    /// Returns the attributes of the file; `None` unless all attributes of [`crate::attrs::OBJECT`] are known.
    pub fn attrs(&self) -> Option<Attrs> {
        Some(Attrs {
            id: FileId(self.fileid?),
            kind: self.kind?,
            mode: self.mode?,
            nlink: self.numlinks?,
            uid: self.owner?,
            gid: self.owner_group?,
            size: self.size?,
            used: self.space_used?,
            holes: false,
            atime: self.time_access?,
            mtime: self.time_modify?,
            ctime: self.time_metadata?,
            btime: self.time_create?,
            change: self.change?,
            rdev: self.rawdev?,
        })
    }

    /// Returns the capacity of the file system; `None` unless all attributes of [`crate::attrs::STATFS`] are known.
    pub fn statfs(&self) -> Option<StatFs> {
        Some(StatFs {
            bytes_total: self.space_total?,
            bytes_free: self.space_free?,
            bytes_avail: self.space_avail?,
            files_total: self.files_total?,
            files_free: self.files_free?,
        })
    }
}
