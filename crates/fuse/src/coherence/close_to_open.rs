//! Close-to-open: an open sees the data that other clients wrote before they closed the file.
//!
//! The client learns size and attributes with each OPEN. This file makes the kernel drop the pages and attributes that
//! it has cached of older versions, and decides whether the open uses the page cache. The flush before a close is
//! `client::File::close`.

use crate::abi::fopen;
use crate::coherence::Coherence;
use crate::coherence::open_pages::PageUse;
use crate::coherence::write_back::NotAlone;
use crate::coherence::writers::Writing;
use client::{Access, File};
use types::{Attrs, ByteRange};

/// How an open may use the page cache.
pub(crate) struct Admission {
    /// The `FOPEN_*` flags for the kernel.
    how: u32,
    /// The guard of the kernel's writes to the page cache, if the kernel writes there.
    writing: Option<Writing>,
}

/// The state of the kernel's cache when the kernel opens a file, as known to the mount.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Whether the kernel's pages do not belong to the opened version.
    changed: bool,
    /// Whether the kernel has the size of the opened version cached.
    sure: bool,
}

impl Found {
    /// Returns the known state of the kernel's cache for a file that the open has created. The kernel may know a file
    /// that another client created meanwhile, with another size.
    pub(crate) fn created(is_new: bool) -> Found {
        Found { changed: true, sure: is_new }
    }
}

impl Admission {
    /// Returns the `FOPEN_*` flags for the kernel.
    pub(crate) fn how(&self) -> u32 {
        self.how
    }
}

impl Coherence {
    /// Returns whether a file opened with these flags needs a write delegation, to be written to the page cache.
    pub(crate) fn wants_write_delegation(&self, flags: u32) -> bool {
        self.write_back.wants(flags) && self.mount.policy().policy.access == Access::Page
    }

    /// Records that the mgr has opened a file for a request of `thread`, with these attributes, and makes the kernel
    /// drop or correct cached data of older versions.
    pub(crate) async fn opened(&self, thread: u32, number: u64, file: &File, truncated: bool) -> Found {
        let attrs = file.attrs();
        self.attributes_fetched(number, &attrs);
        let changed = !self.cache.pages_are_of(number, &attrs);
        // On O_TRUNC the kernel itself sets its cached size to 0, with the inode locked, so that size is certain.
        let sure = if truncated {
            self.range_changed(number, ByteRange::ALL);
            self.size_may_change(number);
            self.replied_surely(number, &Attrs { size: 0, ..attrs });
            true
        } else if self.write_back.is_on() && file.is_alone() {
            self.agree_surely(number, &attrs).await
        } else {
            self.agree_whole(thread, number, &attrs).await;
            true
        };
        Found { changed, sure }
    }

    /// Decides how the open of a file with these flags uses the page cache. The kernel is going to write the file to its
    /// page cache if the mount holds the write delegation and the kernel has the right size.
    pub(crate) fn admit(&self, file: &File, flags: u32, Found { changed, sure }: Found) -> Admission {
        let keep = if changed { 0 } else { fopen::KEEP_CACHE };
        let past = Admission { how: fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES, writing: None };
        if file.policy().access != Access::Page || !file.may_be_cached() {
            return past;
        }
        let number = file.node().id.0;
        match self.write_back.begin(number, file, flags) {
            Ok(None) => Admission { how: keep, writing: None },
            Ok(Some(_)) if !sure => past,
            Ok(writing) => {
                self.size_may_change(number);
                Admission { how: keep, writing }
            }
            Err(NotAlone) => past,
        }
    }

    /// Records that a new file was opened, whose entry the kernel is about to receive.
    pub(crate) fn created(&self, number: u64, admission: &Admission) {
        if admission.writing.is_some() {
            self.size_may_change(number);
        }
    }

    /// Begins the use of the page cache by an open with these flags.
    pub(crate) fn begins_use(&self, file: &File, flags: u32, Admission { how, writing }: Admission) -> PageUse {
        PageUse::begin(&self.pages, file, flags, (how & fopen::DIRECT_IO == 0, writing))
    }

    /// Returns the `FOPEN_*` flags for the reply to an open that has begun its use of the page cache as `how` says.
    pub(crate) async fn open_replied(&self, number: u64, how: u32) -> u32 {
        // A write past the page cache between the check of the pages and here has not found the file open.
        if self.is_shared(number) {
            // The kernel may still cache attributes that it received before the file was shared.
            self.invalidate_attributes(number);
            if self.write_back.is_on() {
                Box::pin(self.expire(number)).await;
            }
        }
        let keeps = how & fopen::KEEP_CACHE != 0 && !self.cache.is_written_past(number);
        if keeps { how } else { how & !fopen::KEEP_CACHE }
    }
}
