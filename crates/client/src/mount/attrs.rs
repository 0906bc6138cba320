//! GETATTR, SETATTR, ACCESS and extended attributes of files on a mount.

use super::names::shown;
use super::{Mount, Node};
use crate::Result;
use crate::compound::Results;
use crate::inode::{Inode, StatusOnly};
use bytes::Bytes;
use layout::policy::{Origin, Part, is_policy_name};
use std::sync::Arc;
use types::limits::PAYLOAD_MAX;
use types::{Attrs, FileId, SetAttrs};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Maximum size of the names in the reply to one LISTXATTRS, in bytes.
const XATTR_NAMES_BYTES: u32 = 64 << 10;

/// Whether an extended attribute may, must, or must not exist before it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// The attribute may exist.
    #[default]
    Either,
    /// The attribute must not exist; otherwise setting it fails with `Exist`.
    Create,
    /// The attribute must exist; otherwise setting it fails with `NoXattr`.
    Replace,
}

impl Mount {
    /// Requests the attributes of a file from the mgr. The size in the result includes bytes that a program wrote on
    /// this mount and that the mgr does not know of yet.
    pub async fn getattr(&self, node: &Node) -> Result<Attrs> {
        if let Some(inode) = self.inner.open_inode(node.id) {
            return inode.learn_attrs().await;
        }
        let mut compound = self.compound("asking for attributes");
        compound.putfh(&node.handle).getattr();
        let mut results = self.inner.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        results.attrs()
    }

    /// Returns whether the file is open on this mount while other clients may write it (see the policy setting
    /// `sharing`). If so, the caller must not cache the file's bytes or attributes.
    pub fn is_shared(&self, file: FileId) -> bool {
        self.inner.open_inode(file).is_some_and(|inode| inode.is_shared())
    }

    /// Sets attributes of a file. Returns all attributes of the file after the change.
    pub async fn setattr(&self, node: &Node, changes: &SetAttrs) -> Result<Attrs> {
        let outcome = self.set_attrs(node, changes).await;
        self.inner.names().permissions_changed(node.id);
        outcome
    }

    async fn set_attrs(&self, node: &Node, changes: &SetAttrs) -> Result<Attrs> {
        let inode = self.inner.open_inode(node.id);
        // Before SETATTR, send dirty bytes and report the file size to the mgr, even if another task is closing the
        // file. A WRITE or size report that reaches the mgr after SETATTR would overwrite the new size or time.
        let settles = |inode: &&Arc<Inode>| {
            let undone = (changes.size.is_some() || changes.mtime.is_some()) && !inode.is_clean();
            undone || (changes.size.is_some() && inode.is_open_for_writing())
        };
        if let Some(inode) = inode.as_ref().filter(settles) {
            if self.expects(node) {
                self.check_paths(node).await?;
            }
            return inode.set_attrs(None, &self.caller, changes).await;
        }
        if let (Some(inode), Some(_)) = (&inode, changes.size) {
            inode.forget_lengths().await;
        }
        let stamp = self.inner.stamp();
        let mut compound = self.compound("changing attributes").cached();
        let args = SETATTR4args {
            stateid: stateid4 { seqid: 0, other: [0; 12] },
            obj_attributes: nfs::attrs::encode_set(changes),
        };
        self.arrive(&mut compound, node).op(OP_SETATTR, &args).getattr();
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<StatusOnly>(OP_SETATTR)?;
        let mut attrs = results.attrs()?;
        if let Some(inode) = inode {
            if changes.size.is_some() {
                inode.forget_lengths().await;
            }
            attrs.size = inode.learn_size(attrs.size, stamp);
        }
        Ok(attrs)
    }

    /// Asks the mgr to check the path expectations of this mount for a file, without any other operation.
    async fn check_paths(&self, node: &Node) -> Result<()> {
        let mut compound = self.compound("checking the path of a file");
        self.arrive(&mut compound, node);
        self.inner.session.call(compound).await?.arrived()
    }

    /// Returns which ACCESS4 bits of `wanted` (RFC 8881 §18.1, RFC 8276 §8.4.3) the mgr grants to the caller.
    pub async fn access(&self, node: &Node, wanted: u32) -> Result<u32> {
        let mut compound = self.compound("asking for permissions");
        self.arrive(&mut compound, node).op(OP_ACCESS, &ACCESS4args { access: wanted });
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<ACCESS4resok>(OP_ACCESS).map(|got| got.access & wanted)
    }

    /// Returns the value of an extended attribute. `name` does not include the prefix `user.`.
    pub async fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Bytes> {
        let args = GETXATTR4args { gxa_name: Bytes::copy_from_slice(name) };
        let what = format!("reading extended attribute {}", shown(name));
        let mut compound = self.compound(what);
        self.arrive(&mut compound, node).op(OP_GETXATTR, &args);
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<XattrValue>(OP_GETXATTR).map(|got| got.0)
    }

    /// Sets an extended attribute. `name` does not include the prefix `user.`.
    pub async fn setxattr(&self, node: &Node, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let args = SETXATTR4args {
            sxa_option: match mode {
                XattrMode::Either => SETXATTR4_EITHER,
                XattrMode::Create => SETXATTR4_CREATE,
                XattrMode::Replace => SETXATTR4_REPLACE,
            },
            sxa_key: Bytes::copy_from_slice(name),
            sxa_value: Bytes::copy_from_slice(value),
        };
        let what = format!("setting extended attribute {}", shown(name));
        let mut compound = self.compound(what).cached();
        self.arrive(&mut compound, node).op(OP_SETXATTR, &args);
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<change_info4>(OP_SETXATTR)?;
        self.own_changed(node, name, Some(value));
        Ok(())
    }

    /// Handles a change of a policy attribute of a file by a caller of this mount: the new policy setting applies at
    /// once if the file is open.
    fn own_changed(&self, node: &Node, name: &[u8], value: Option<&[u8]>) {
        let Some(inode) = self.inner.open_inode(node.id).filter(|_| is_policy_name(name)) else { return };
        inode.set_own(|own| match (value, Part::named(name)) {
            (None, Ok(part)) => own.unset(part),
            // Ignore the result: the mgr has accepted the value of the policy setting, so the client can parse the
            // value.
            (Some(value), _) => drop(own.set(Origin::File, name, value)),
            (None, Err(_)) => {}
        });
    }

    /// Returns the names of all extended attributes, without the `user.` prefix.
    pub async fn listxattr(&self, node: &Node) -> Result<Vec<Bytes>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let args = LISTXATTRS4args { lxa_cookie: cookie, lxa_maxcount: XATTR_NAMES_BYTES };
            let mut compound = self.compound("listing extended attributes");
            self.arrive(&mut compound, node).op(OP_LISTXATTRS, &args);
            let mut results: Results = self.inner.session.call(compound).await?;
            results.arrived()?;
            let got: LISTXATTRS4resok = results.take(OP_LISTXATTRS)?;
            let stuck = got.lxr_names.is_empty() || got.lxr_cookie == cookie;
            names.extend(got.lxr_names);
            if got.lxr_eof || stuck || names.len() > PAYLOAD_MAX {
                return Ok(names);
            }
            cookie = got.lxr_cookie;
        }
    }

    /// Removes an extended attribute. `name` does not include the prefix `user.`.
    pub async fn removexattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        let args = REMOVEXATTR4args { rxa_name: Bytes::copy_from_slice(name) };
        let what = format!("removing extended attribute {}", shown(name));
        let mut compound = self.compound(what).cached();
        self.arrive(&mut compound, node).op(OP_REMOVEXATTR, &args);
        let mut results = self.inner.session.call(compound).await?;
        results.arrived()?;
        results.take::<change_info4>(OP_REMOVEXATTR)?;
        self.own_changed(node, name, None);
        Ok(())
    }
}

/// The attribute value in the result of GETXATTR. In the result, the value follows the status code (RFC 8276 §8.4.1.2).
struct XattrValue(Bytes);

impl Xdr for XattrValue {
    fn encode(&self, out: &mut Writer) {
        out.opaque(&self.0);
    }

    fn decode(input: &mut Reader) -> std::result::Result<Self, Malformed> {
        input.opaque(PAYLOAD_MAX).map(XattrValue)
    }
}
