//! The registry of NFS operations: the module that executes each operation, and the properties that COMPOUND needs.
//!
//! Each operation is one file with a function `run`, which takes the arguments and returns the body of the result. The
//! server answers NOTSUPP to NFS operations without a file.

mod access;
mod allocate;
mod backchannel_ctl;
mod bind_conn_to_session;
mod close;
mod commit;
mod copy;
mod create;
mod create_session;
mod deallocate;
mod delegreturn;
mod destroy_clientid;
mod destroy_session;
mod exchange_id;
mod free_stateid;
mod get_dir_delegation;
mod getattr;
mod getdeviceinfo;
mod getfh;
mod getxattr;
mod io_advise;
mod layoutcommit;
mod layouterror;
mod layoutget;
mod layoutreturn;
mod layoutstats;
mod link;
mod listxattrs;
mod lock;
mod lockt;
mod locku;
mod lookup;
mod lookupp;
mod nverify;
mod open;
mod open_downgrade;
mod putfh;
mod putpubfh;
mod putrootfh;
mod read;
mod read_plus;
mod readdir;
mod readlink;
mod reclaim_complete;
mod remove;
mod removexattr;
mod rename;
mod restorefh;
mod savefh;
mod secinfo;
mod secinfo_no_name;
mod seek;
mod sequence;
mod setattr;
mod setxattr;
mod test_stateid;
mod verify;
mod write;

use super::callbacks::Callbacks;
use super::compound::{Answer, Body, Compound, Refusal};
use crate::fs::FileSystem;
use wire::nfs4::compound::{Ops, opnum};
use wire::nfs4::*;
use xdr::{Segments, Writer, Xdr};

/// Maps operation numbers to modules. The futures of `large` operations are boxed, because otherwise the future of
/// every request is as large as the largest of these futures, and the runtime copies this future when the request
/// becomes a task.
macro_rules! registry {
    (small { $($op:ident => $module:ident,)* } large { $($large_op:ident => $large:ident,)* }) => {
        /// Decodes the arguments of an operation, executes the operation, and encodes the body of its result.
        pub(super) async fn run<F: FileSystem, C: Callbacks>(
            cx: &mut Compound<'_, F, C>,
            op: nfs_opnum4,
            input: &mut Ops,
        ) -> Answer<Segments> {
            match op {
                $($op => {
                    let arguments = arguments(input)?;
                    Ok(encoded(&$module::run(cx, arguments).await?))
                })*
                $($large_op => {
                    let arguments = arguments(input)?;
                    Ok(encoded(&Box::pin($large::run(cx, arguments)).await?))
                })*
                _ => Err(NFS4ERR_NOTSUPP.into()),
            }
        }

        /// The numbers of all operations that the server supports.
        #[cfg(test)]
        pub(super) const REGISTERED: &[nfs_opnum4] = &[$($op,)* $($large_op),*];
    };
}

registry! {
    small {
        OP_ACCESS => access,
        OP_GETATTR => getattr,
        OP_GETFH => getfh,
        OP_LOOKUP => lookup,
        OP_LOOKUPP => lookupp,
        OP_PUTFH => putfh,
        OP_PUTPUBFH => putpubfh,
        OP_PUTROOTFH => putrootfh,
        OP_RESTOREFH => restorefh,
        OP_SAVEFH => savefh,
        OP_SECINFO => secinfo,
        OP_GETDEVICEINFO => getdeviceinfo,
        OP_SECINFO_NO_NAME => secinfo_no_name,
        OP_SEQUENCE => sequence,
        OP_TEST_STATEID => test_stateid,
        OP_GETXATTR => getxattr,
        OP_LISTXATTRS => listxattrs,
    }
    large {
        OP_CLOSE => close,
        OP_COMMIT => commit,
        OP_CREATE => create,
        OP_DELEGRETURN => delegreturn,
        OP_GET_DIR_DELEGATION => get_dir_delegation,
        OP_LINK => link,
        OP_LOCK => lock,
        OP_LOCKT => lockt,
        OP_LOCKU => locku,
        OP_NVERIFY => nverify,
        OP_OPEN => open,
        OP_OPEN_DOWNGRADE => open_downgrade,
        OP_READ => read,
        OP_READDIR => readdir,
        OP_READLINK => readlink,
        OP_REMOVE => remove,
        OP_RENAME => rename,
        OP_SETATTR => setattr,
        OP_VERIFY => verify,
        OP_WRITE => write,
        OP_BACKCHANNEL_CTL => backchannel_ctl,
        OP_BIND_CONN_TO_SESSION => bind_conn_to_session,
        OP_EXCHANGE_ID => exchange_id,
        OP_CREATE_SESSION => create_session,
        OP_DESTROY_SESSION => destroy_session,
        OP_FREE_STATEID => free_stateid,
        OP_LAYOUTCOMMIT => layoutcommit,
        OP_LAYOUTGET => layoutget,
        OP_LAYOUTRETURN => layoutreturn,
        OP_DESTROY_CLIENTID => destroy_clientid,
        OP_RECLAIM_COMPLETE => reclaim_complete,
        OP_ALLOCATE => allocate,
        OP_COPY => copy,
        OP_DEALLOCATE => deallocate,
        OP_IO_ADVISE => io_advise,
        OP_LAYOUTERROR => layouterror,
        OP_LAYOUTSTATS => layoutstats,
        OP_READ_PLUS => read_plus,
        OP_SEEK => seek,
        OP_SETXATTR => setxattr,
        OP_REMOVEXATTR => removexattr,
    }
}

fn arguments<T: Xdr>(input: &mut Ops) -> Result<T, Refusal> {
    input.body().map_err(|_| NFS4ERR_BADXDR.into())
}

fn encoded(body: &impl Body) -> Segments {
    let mut out = Writer::new();
    body.put(&mut out);
    out.finish()
}

/// Returns the operation with this number, if this NFSv4 minor version defines it.
pub(super) fn known(number: u32, minor: u32) -> Option<nfs_opnum4> {
    let op = opnum(number).filter(|op| *op != OP_ILLEGAL)?;
    (minor > 1 || number <= OP_RECLAIM_COMPLETE as u32).then_some(op)
}

/// Returns whether a client may send the operation without SEQUENCE, as the only operation of a COMPOUND (RFC 8881
/// §2.10.2.1, §18.34 to §18.37, §18.50).
pub(super) fn stands_alone(op: nfs_opnum4) -> bool {
    matches!(
        op,
        OP_EXCHANGE_ID | OP_CREATE_SESSION | OP_BIND_CONN_TO_SESSION | OP_DESTROY_SESSION | OP_DESTROY_CLIENTID
    )
}

/// Returns whether an operation changes state. COMPOUND checks before such an operation that the reply has space for
/// the result.
pub(super) fn changes(op: nfs_opnum4) -> bool {
    matches!(
        op,
        OP_CLOSE
            | OP_COMMIT
            | OP_CREATE
            | OP_DELEGRETURN
            | OP_GET_DIR_DELEGATION
            | OP_LINK
            | OP_LOCK
            | OP_LOCKU
            | OP_OPEN
            | OP_OPEN_DOWNGRADE
            | OP_REMOVE
            | OP_RENAME
            | OP_SETATTR
            | OP_WRITE
            | OP_BACKCHANNEL_CTL
            | OP_CREATE_SESSION
            | OP_DESTROY_SESSION
            | OP_FREE_STATEID
            | OP_LAYOUTCOMMIT
            | OP_LAYOUTGET
            | OP_LAYOUTRETURN
            | OP_DESTROY_CLIENTID
            | OP_RECLAIM_COMPLETE
            | OP_ALLOCATE
            | OP_COPY
            | OP_DEALLOCATE
            | OP_SETXATTR
            | OP_REMOVEXATTR
    )
}

/// Returns whether an operation always changes a file, so that a read-only export refuses the operation. OPEN changes a
/// file only with some arguments, so OPEN itself checks whether the export is read-only.
pub(super) fn writes(op: nfs_opnum4) -> bool {
    matches!(
        op,
        OP_ALLOCATE
            | OP_CLONE
            | OP_COPY
            | OP_CREATE
            | OP_DEALLOCATE
            | OP_LAYOUTCOMMIT
            | OP_LINK
            | OP_REMOVE
            | OP_REMOVEXATTR
            | OP_RENAME
            | OP_SETATTR
            | OP_SETXATTR
            | OP_WRITE
            | OP_WRITE_SAME
    )
}

/// Returns whether a server that is only a data server supports the operation: sessions and I/O for clients with a
/// files layout (RFC 8881 §13.6).
pub(super) fn of_data_server(op: nfs_opnum4) -> bool {
    matches!(
        op,
        OP_SEQUENCE
            | OP_EXCHANGE_ID
            | OP_CREATE_SESSION
            | OP_BIND_CONN_TO_SESSION
            | OP_DESTROY_SESSION
            | OP_DESTROY_CLIENTID
            | OP_RECLAIM_COMPLETE
            | OP_SECINFO_NO_NAME
            | OP_PUTFH
            | OP_READ
            | OP_WRITE
            | OP_COMMIT
    )
}

/// Returns the default bytes that follow the status in the result of a failed operation. These bytes mean: no
/// attribute set (SETATTR), no promise of a later callback (LAYOUTGET), size 0 (GETDEVICEINFO).
pub(super) fn refused(op: nfs_opnum4, status: nfsstat4) -> &'static [u8] {
    match (op, status) {
        (OP_SETATTR, _) | (OP_LAYOUTGET, NFS4ERR_LAYOUTTRYLATER) | (OP_GETDEVICEINFO, NFS4ERR_TOOSMALL) => &[0; 4],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Call, Server};

    /// Compile-time check that the futures of the server are `Send`, because the mgr runs COMPOUNDs on any thread.
    #[allow(dead_code)]
    fn compounds_can_move_between_threads<F: FileSystem, C: Callbacks>(server: &Server<F, C>, call: Call) {
        fn moves<T: Send>(_: T) {}
        moves(server.compound(call));
        moves(server.tick(Default::default()));
        moves(server.recall(types::FileId(1), None, Default::default()));
    }

    #[test]
    fn operations_are_registered_once_and_belong_to_a_minor_version() {
        let numbers: std::collections::HashSet<_> = REGISTERED.iter().map(|op| *op as u32).collect();
        assert_eq!(numbers.len(), REGISTERED.len());
        assert!(REGISTERED.iter().all(|op| known(*op as u32, 2) == Some(*op)));
        assert_eq!(known(OP_SEEK as u32, 1), None);
        assert_eq!(known(OP_RECLAIM_COMPLETE as u32, 1), Some(OP_RECLAIM_COMPLETE));
        for number in [0, 1, 2, 76, OP_ILLEGAL as u32, u32::MAX] {
            assert_eq!(known(number, 2), None);
        }
    }
}
