//! Replies with attributes: how long the kernel may cache the attributes of a reply, and the record of the attributes
//! that the kernel has cached.

use crate::abi;
use crate::coherence::Coherence;
use crate::coherence::changed_dirs::Changing;
use crate::coherence::recent_attrs::{Change, Mark};
use crate::reply::Body;
use std::time::Duration;
use types::Attrs;

impl Coherence {
    /// Returns how long the kernel may cache the attributes of a file: not at all if other clients may write the
    /// file.
    fn attrs_lifetime(&self, number: u64) -> Duration {
        if self.is_shared(number) { Duration::ZERO } else { self.attrs_valid }
    }

    /// Returns the present time, and the number of attribute changes by this mount so far. The caller calls this
    /// before it requests attributes from the mgr.
    pub(crate) fn attributes_requested(&self) -> Mark {
        self.recent_attrs.mark()
    }

    /// Returns whether attributes that the mount requested after the moment `mark` are still valid. They are if `mark`
    /// is recent, and this mount has changed no attributes after `mark`.
    pub(crate) fn are_current(&self, mark: Mark) -> bool {
        self.recent_attrs.is_good(mark)
    }

    /// Records that an operation begins that may change attributes of any file. Dropping the returned guard records
    /// that the operation has ended.
    pub(crate) fn change_begins(&self) -> Change<'_> {
        self.recent_attrs.change()
    }

    /// Records that the kernel is about to receive an entry with the given attributes. The caller must ensure that no
    /// FORGET of the file runs during this call.
    pub(crate) fn entry_sent(&self, number: u64, attrs: &Attrs) {
        self.cache.entry_sent(number, attrs);
    }

    /// Returns how long the kernel may cache the attributes in the entry that it receives in the reply to a request of
    /// `thread`. `changed`: the file may have changed since the mount requested the attributes. `mark`: the moment
    /// before the mount requested the attributes, or `None` if the kernel's request changed something.
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
        // `valid` is zero if other clients may write the file. An `INVAL_INODE` notification cannot replace this check,
        // because before this reply the kernel may have no inode of the file.
        if changed || valid.is_zero() || self.needs_correction(thread, number, attrs) {
            // If the attributes have no lifetime, the kernel sends GETATTR when a program needs them, and the mount
            // corrects the kernel's cache before the mount replies.
            return Duration::ZERO;
        }
        if let Some(mark) = mark {
            self.recent_attrs.insert(number, attrs, mark);
        }
        valid
    }

    /// Returns how long the kernel may cache the given attributes in the reply to a GETATTR.
    pub(crate) fn getattr_replied(&self, number: u64, attrs: &Attrs) -> Duration {
        self.replied(number, attrs);
        self.attrs_sent(number, attrs);
        self.attrs_lifetime(number)
    }

    /// Returns how long the kernel may cache the given attributes in the reply to a SETATTR. The kernel accepts this
    /// reply even if it has received other attributes since it sent the SETATTR. So a size that other clients may have
    /// changed gets no lifetime.
    pub(crate) fn setattr_replied(&self, number: u64, attrs: &Attrs) -> Duration {
        self.replied_surely(number, attrs);
        self.attrs_sent(number, attrs);
        if self.write_back.is_written(number) { Duration::ZERO } else { self.attrs_lifetime(number) }
    }

    /// Records that the kernel receives the given attributes of a file in a reply. The kernel discards a reply if its
    /// own attributes of the file have changed since it sent the request. So the kernel may or may not cache a new
    /// size. With write-back, the kernel ignores the size in replies.
    fn replied(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.cache.may_take(number, attrs);
        }
    }

    /// Records that the kernel receives the given attributes in the reply to SETATTR or to an open that truncates. The
    /// kernel never discards such a reply.
    pub(super) fn replied_surely(&self, number: u64, attrs: &Attrs) {
        if !self.write_back.is_on() {
            self.cache.has_now(number, attrs);
        }
    }

    /// Records that the kernel receives the given attributes of a file.
    pub(super) fn attrs_sent(&self, number: u64, attrs: &Attrs) {
        self.cache.attrs_sent(number, attrs);
        self.keep_pages(number, attrs);
    }

    /// Returns attributes that the kernel received a moment ago and requests again with the birth time (STATX), and
    /// their remaining lifetime.
    pub(crate) fn getattr_repeated(&self, number: u64) -> Option<(Attrs, Duration)> {
        let valid = self.attrs_lifetime(number);
        if valid.is_zero() {
            return None;
        }
        let (attrs, ago) = self.recent_attrs.take(number)?;
        Some((attrs, valid.saturating_sub(ago)))
    }

    /// Records that the kernel's pages of a file belong to the version with these attributes, so that the next open
    /// keeps the pages. Has an effect only for a file that the kernel writes back and no other client uses.
    fn keep_pages(&self, number: u64, attrs: &Attrs) {
        if self.write_back.is_on() && self.write_back.is_written(number) && !self.write_back.is_shared(number) {
            self.cache.pages_became(number, attrs);
        }
    }

    /// Makes the kernel expire cached attributes of a file that are older than `attrs`, which the mgr has sent.
    pub(crate) fn attributes_fetched(&self, number: u64, attrs: &Attrs) {
        self.recent_attrs.changed();
        if self.cache.is_outdated(number, attrs, self.write_back.is_on()) {
            self.invalidate_attributes(number);
        }
    }

    /// Makes the kernel expire its cached attributes of a file. The kernel also discards replies that are in flight
    /// when it receives the `INVAL_INODE` notification.
    pub(super) fn invalidate_attributes(&self, number: u64) {
        let Some(transport) = self.transport() else { return };
        // In an `INVAL_INODE` notification, a negative offset invalidates only the attributes.
        let body = Body::with_capacity(24).u64(number).u64(u64::MAX).u64(0).into_vec();
        if let Err(error) = transport.notify(abi::notify::INVAL_INODE, &body) {
            // The kernel has no inode of the file, so it has no attributes to expire.
            tracing::trace!(node = number, "cannot send new attributes to the kernel: {error}");
        }
    }

    /// Records that a change of a directory begins for which the reply does not contain the directory's attributes.
    pub(crate) fn directory_changes(&self, number: u64) -> Changing<'_> {
        self.changed_dirs.changing(number)
    }

    /// Returns the number of directory changes whose replies contained no attributes: the `mark` for
    /// [`Coherence::directory_changed`]. The caller calls this before a change of a directory if the reply contains
    /// the directory's attributes.
    pub(crate) fn directory_mark(&self) -> u64 {
        self.changed_dirs.unseen()
    }

    /// Records the reply to a change of a directory, with the directory's attributes if the reply contains them. `mark`
    /// is the result of [`Coherence::directory_mark`] before the change.
    pub(crate) fn directory_changed(&self, number: u64, attrs: Option<Attrs>, mark: u64) {
        self.changed_dirs.changed(number, attrs, self.attrs_valid, mark);
    }

    /// Returns the attributes of a directory from the last change by this mount, if they are still valid.
    pub(crate) fn directory_just_changed(&self, number: u64) -> Option<Attrs> {
        self.changed_dirs.just_changed(number)
    }
}
