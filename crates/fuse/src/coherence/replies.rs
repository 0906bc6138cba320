//! Replies that carry attributes to the kernel: for how long the kernel may cache them, and the record of these cached
//! attributes.

use crate::abi;
use crate::coherence::Coherence;
use crate::coherence::changed_dirs::Changing;
use crate::coherence::recent_attrs::{Change, Mark};
use crate::reply::Body;
use std::time::Duration;
use types::Attrs;

impl Coherence {
    /// Returns how long the kernel may cache the attributes of a file. Those of a shared file are not cached.
    fn attrs_lifetime(&self, number: u64) -> Duration {
        if self.is_shared(number) { Duration::ZERO } else { self.attrs_valid }
    }

    /// Returns the mark of the present moment, before attributes are requested.
    pub(crate) fn attributes_requested(&self) -> Mark {
        self.recent_attrs.mark()
    }

    /// Returns whether attributes that were requested after this mark are still valid: this mount has changed nothing
    /// since, and the mark is recent.
    pub(crate) fn are_current(&self, mark: Mark) -> bool {
        self.recent_attrs.is_good(mark)
    }

    /// Records that an operation begins that may change attributes of any file, in progress until the returned value is
    /// dropped.
    pub(crate) fn change_begins(&self) -> Change<'_> {
        self.recent_attrs.change()
    }

    /// Records that the kernel is about to receive an entry with these attributes. To be called while no FORGET of the
    /// file can be executed.
    pub(crate) fn entry_told(&self, number: u64, attrs: &Attrs) {
        self.cache.entry_told(number, attrs);
    }

    /// Returns how long the kernel may cache the attributes in the entry that it is about to receive, for the request of
    /// `thread`. `changed`: another client, or a write to the page cache, may have changed the file since the attributes
    /// were requested. `mark`: taken before the attributes were requested, if the request changed nothing.
    pub(crate) fn entry_replied(
        &self,
        thread: u32,
        number: u64,
        attrs: &Attrs,
        (changed, mark): (bool, Option<Mark>),
    ) -> Duration {
        self.replied(number, attrs);
        self.keep_pages(number, attrs);
        let valid = self.attrs_lifetime(number);
        // A kernel that does not know the file yet cannot be notified before this answer that other clients want the
        // file.
        if changed || valid.is_zero() || self.needs_correction(thread, number, attrs) {
            // A program that needs attributes then sends GETATTR, and the kernel is corrected before the answer.
            return Duration::ZERO;
        }
        if let Some(mark) = mark {
            self.recent_attrs.tell(number, attrs, mark);
        }
        valid
    }

    /// Returns how long the kernel may cache these attributes, which answer a GETATTR.
    pub(crate) fn getattr_replied(&self, number: u64, attrs: &Attrs) -> Duration {
        self.replied(number, attrs);
        self.told(number, attrs);
        self.attrs_lifetime(number)
    }

    /// As [`Coherence::getattr_replied`], after a change that the kernel has requested (SETATTR). The kernel accepts such
    /// an answer even if it received other attributes meanwhile. So the answer must not give a lifetime to a size that
    /// other clients may have changed by then.
    pub(crate) fn setattr_replied(&self, number: u64, attrs: &Attrs) -> Duration {
        self.replied_surely(number, attrs);
        self.told(number, attrs);
        if self.write_back.is_written(number) { Duration::ZERO } else { self.attrs_lifetime(number) }
    }

    /// Records that the kernel receives these attributes. It drops an answer if it has changed its own attributes of
    /// the file since it asked, so a new size may or may not reach its cache. A kernel that writes back takes sizes
    /// from no answer.
    fn replied(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.cache.may_take(number, attrs);
        }
    }

    /// As [`Coherence::replied`], in the answer to SETATTR or an open that truncates: the kernel never drops that answer.
    pub(super) fn replied_surely(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.cache.has_now(number, attrs);
        }
    }

    /// Records that the kernel receives these attributes of a file.
    pub(super) fn told(&self, number: u64, attrs: &Attrs) {
        self.cache.told(number, attrs);
        self.keep_pages(number, attrs);
    }

    /// Returns attributes that the kernel received a moment ago and that it asks for once more with the birth time
    /// (STATX), and how long it may still cache them.
    pub(crate) fn getattr_repeated(&self, number: u64) -> Option<(Attrs, Duration)> {
        let valid = self.attrs_lifetime(number);
        if valid.is_zero() {
            return None;
        }
        let (attrs, ago) = self.recent_attrs.take(number)?;
        Some((attrs, valid.saturating_sub(ago)))
    }

    /// Lets the kernel keep pages of a file that only it writes: the next open finds the pages valid for these
    /// attributes.
    fn keep_pages(&self, number: u64, attrs: &Attrs) {
        if self.write_back.is_on() && self.write_back.is_written(number) && !self.write_back.is_shared(number) {
            self.cache.pages_became(number, attrs);
        }
    }

    /// Ensures that the kernel does not continue with attributes older than these, which the mount has from the mgr.
    pub(crate) fn attributes_fetched(&self, number: u64, attrs: &Attrs) {
        self.recent_attrs.changed();
        if self.cache.is_outdated(number, attrs, self.write_back.is_on()) {
            self.invalidate_attributes(number);
        }
    }

    /// Makes the kernel ask for the attributes of a file again. The kernel drops answers that are in flight at that
    /// moment, because they may make it drop pages.
    pub(super) fn invalidate_attributes(&self, number: u64) {
        let Some(transport) = self.transport() else { return };
        // A negative offset invalidates attributes only.
        let body = Body::with_capacity(24).u64(number).u64(u64::MAX).u64(0).into_vec();
        if let Err(error) = transport.notify(abi::notify::INVAL_INODE, &body) {
            // The kernel has forgotten the file.
            tracing::trace!(node = number, "cannot send new attributes to the kernel: {error}");
        }
    }

    /// Records that a change of a directory begins whose answer does not contain the directory's attributes.
    pub(crate) fn directory_changes(&self, number: u64) -> Changing<'_> {
        self.changed_dirs.changing(number)
    }

    /// Returns a mark for [`Coherence::directory_changed`], to be taken before the change of a directory whose answer
    /// contains the directory's attributes.
    pub(crate) fn directory_mark(&self) -> u64 {
        self.changed_dirs.unseen()
    }

    /// Records the answer to a change of a directory, with or without the attributes of the directory. The mark is from
    /// before the change.
    pub(crate) fn directory_changed(&self, number: u64, attrs: Option<Attrs>, mark: u64) {
        self.changed_dirs.changed(number, attrs, self.attrs_valid, mark);
    }

    /// Returns the attributes of a directory that this mount has just changed.
    pub(crate) fn directory_just_changed(&self, number: u64) -> Option<Attrs> {
        self.changed_dirs.just_changed(number)
    }
}
