//! Close-to-open consistency: an open sees the data that other clients wrote before they closed the file.
//!
//! Each reply to OPEN gives the client the size and attributes of the file. This module makes the kernel drop cached
//! pages and attributes of older versions, and decides whether the open uses the page cache. `client::File::close`
//! flushes the dirty data of a file, so that later opens on other clients see the data.

use crate::abi::fopen;
use crate::coherence::Coherence;
use crate::coherence::open_pages::PageUse;
use crate::coherence::write_back::NotDelegated;
use crate::coherence::writers::Writing;
use client::{Access, File};
use types::{Attrs, ByteRange};

/// How an open may use the page cache, as decided by [`Coherence::admit`].
pub(crate) struct Admission {
    /// The `FOPEN_*` flags in the reply to OPEN or CREATE.
    how: u32,
    /// Keeps this open in the table of writers; `None` if this open does not write through the page cache.
    writing: Option<Writing>,
}

/// The state of the kernel's cache at an open, as far as the mount knows it.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Whether the kernel's cached pages belong to another version of the file than the version that was opened.
    changed: bool,
    /// Whether the kernel is certain to have the size of the opened version cached.
    sure: bool,
}

impl Found {
    /// Returns the state of the kernel's cache for a file that CREATE has created or opened. If `is_new` is false,
    /// another client created the file, and the kernel may have cached an older size of the file.
    pub(crate) fn created(is_new: bool) -> Found {
        Found { changed: true, sure: is_new }
    }
}

impl Admission {
    /// Returns the `FOPEN_*` flags for the reply to OPEN or CREATE.
    pub(crate) fn how(&self) -> u32 {
        self.how
    }
}

impl Coherence {
    /// Returns whether an open with the given flags needs a write delegation, so that the kernel can write the file
    /// through the page cache.
    pub(crate) fn wants_write_delegation(&self, flags: u32) -> bool {
        self.write_back.wants(flags) && self.mount.policy().policy.access == Access::Page
    }

    /// Records that the mgr has opened a file for a request of `thread`. Makes the kernel drop or correct cached data
    /// that is older than the attributes in the reply to OPEN.
    pub(crate) async fn opened(&self, thread: u32, number: u64, file: &File, truncated: bool) -> Found {
        let attrs = file.attrs();
        self.attributes_fetched(number, &attrs);
        let changed = !self.cache.pages_are_of(number, &attrs);
        // On O_TRUNC the kernel sets its cached size to 0 with the inode locked, so the cached size is certain.
        let sure = if truncated {
            self.range_changed(number, ByteRange::ALL);
            self.size_may_change(number);
            self.replied_surely(number, &Attrs { size: 0, ..attrs });
            true
        } else if self.write_back.is_on() && file.is_alone() {
            self.correct_for_page_cache(number, &attrs).await
        } else {
            self.correct_if_needed(thread, number, &attrs).await;
            true
        };
        Found { changed, sure }
    }

    /// Decides how an open with the given flags uses the page cache. The kernel may write the file through the page
    /// cache if the mount has the write delegation and the kernel has the right size cached.
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
            Err(NotDelegated) => past,
        }
    }

    /// Records that CREATE has opened a new file, before the kernel receives the entry of the file.
    pub(crate) fn created(&self, number: u64, admission: &Admission) {
        if admission.writing.is_some() {
            self.size_may_change(number);
        }
    }

    /// Begins the use of the page cache by an open with the given flags of open(2).
    pub(crate) fn begins_use(&self, file: &File, flags: u32, Admission { how, writing }: Admission) -> PageUse {
        PageUse::begin(&self.pages, file, flags, (how & fopen::DIRECT_IO == 0, writing))
    }

    /// Returns the `FOPEN_*` flags for the reply to an open. `how` has the flags that [`Coherence::admit`] chose for
    /// this open.
    pub(crate) async fn open_replied(&self, number: u64, how: u32) -> u32 {
        if self.is_shared(number) {
            // The kernel may still have attributes cached that it received before another client opened the file, so
            // expire them.
            self.invalidate_attributes(number);
            if self.write_back.is_on() {
                Box::pin(self.expire(number)).await;
            }
        }
        // If a direct write by another open ended before this open began to use the page cache, the mount did not make
        // the kernel drop its older pages. So set `KEEP_CACHE` only if this mount has made no direct write since the
        // reply to the last OPEN.
        let keeps = how & fopen::KEEP_CACHE != 0 && !self.cache.is_written_directly(number);
        if keeps { how } else { how & !fopen::KEEP_CACHE }
    }
}
