"""Tables of PostgreSQL's catalog that have no rows here, and that only administrators ask for."""

_LISTED = """
information_schema.administrable_role_authorizations information_schema.applicable_roles:
  grantee role_name is_grantable
information_schema.attributes:
  udt_catalog udt_schema udt_name attribute_name ordinal_position:int attribute_default is_nullable data_type
  character_maximum_length:int character_octet_length:int character_set_catalog character_set_schema
  character_set_name collation_catalog collation_schema collation_name numeric_precision:int
  numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type interval_precision:int
  attribute_udt_catalog attribute_udt_schema attribute_udt_name scope_catalog scope_schema scope_name
  maximum_cardinality:int dtd_identifier is_derived_reference_attribute
information_schema.check_constraint_routine_usage:
  constraint_catalog constraint_schema constraint_name specific_catalog specific_schema specific_name
information_schema.collation_character_set_applicability:
  collation_catalog collation_schema collation_name character_set_catalog character_set_schema character_set_name
information_schema.collations:
  collation_catalog collation_schema collation_name pad_attribute
information_schema.column_column_usage:
  table_catalog table_schema table_name column_name dependent_column
information_schema.column_domain_usage:
  domain_catalog domain_schema domain_name table_catalog table_schema table_name column_name
information_schema.column_options:
  table_catalog table_schema table_name column_name option_name option_value
information_schema.column_udt_usage:
  udt_catalog udt_schema udt_name table_catalog table_schema table_name column_name
information_schema.constraint_table_usage:
  table_catalog table_schema table_name constraint_catalog constraint_schema constraint_name
information_schema.data_type_privileges:
  object_catalog object_schema object_name object_type dtd_identifier
information_schema.domain_constraints:
  constraint_catalog constraint_schema constraint_name domain_catalog domain_schema domain_name is_deferrable
  initially_deferred
information_schema.domain_udt_usage:
  udt_catalog udt_schema udt_name domain_catalog domain_schema domain_name
information_schema.element_types:
  object_catalog object_schema object_name object_type collection_type_identifier data_type
  character_maximum_length:int character_octet_length:int character_set_catalog character_set_schema
  character_set_name collation_catalog collation_schema collation_name numeric_precision:int
  numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type interval_precision:int
  udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name maximum_cardinality:int dtd_identifier
information_schema.foreign_data_wrapper_options:
  foreign_data_wrapper_catalog foreign_data_wrapper_name option_name option_value
information_schema.foreign_data_wrappers:
  foreign_data_wrapper_catalog foreign_data_wrapper_name authorization_identifier library_name
  foreign_data_wrapper_language
information_schema.foreign_server_options:
  foreign_server_catalog foreign_server_name option_name option_value
information_schema.foreign_servers:
  foreign_server_catalog foreign_server_name foreign_data_wrapper_catalog foreign_data_wrapper_name
  foreign_server_type foreign_server_version authorization_identifier
information_schema.foreign_table_options:
  foreign_table_catalog foreign_table_schema foreign_table_name option_name option_value
information_schema.foreign_tables:
  foreign_table_catalog foreign_table_schema foreign_table_name foreign_server_catalog foreign_server_name
information_schema.information_schema_catalog_name:
  catalog_name
information_schema.role_column_grants:
  grantor grantee table_catalog table_schema table_name column_name privilege_type is_grantable
information_schema.role_routine_grants information_schema.routine_privileges:
  grantor grantee specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name
  privilege_type is_grantable
information_schema.role_udt_grants information_schema.udt_privileges:
  grantor grantee udt_catalog udt_schema udt_name privilege_type is_grantable
information_schema.role_usage_grants information_schema.usage_privileges:
  grantor grantee object_catalog object_schema object_name object_type privilege_type is_grantable
information_schema.routine_column_usage:
  specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name table_catalog
  table_schema table_name column_name
information_schema.routine_routine_usage:
  specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name
information_schema.routine_sequence_usage:
  specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name sequence_catalog
  sequence_schema sequence_name
information_schema.routine_table_usage:
  specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name table_catalog
  table_schema table_name
information_schema.sql_features:
  feature_id feature_name sub_feature_id sub_feature_name is_supported is_verified_by comments
information_schema.sql_implementation_info:
  implementation_info_id implementation_info_name integer_value:int character_value comments
information_schema.sql_parts:
  feature_id feature_name is_supported is_verified_by comments
information_schema.sql_sizing:
  sizing_id:int sizing_name supported_value:int comments
information_schema.transforms:
  udt_catalog udt_schema udt_name specific_catalog specific_schema specific_name group_name transform_type
information_schema.triggered_update_columns:
  trigger_catalog trigger_schema trigger_name event_object_catalog event_object_schema event_object_table
  event_object_column
information_schema.user_defined_types:
  user_defined_type_catalog user_defined_type_schema user_defined_type_name user_defined_type_category is_instantiable
  is_final ordering_form ordering_category ordering_routine_catalog ordering_routine_schema ordering_routine_name
  reference_type data_type character_maximum_length:int character_octet_length:int character_set_catalog
  character_set_schema character_set_name collation_catalog collation_schema collation_name numeric_precision:int
  numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type interval_precision:int
  source_dtd_identifier ref_dtd_identifier
information_schema.user_mapping_options:
  authorization_identifier foreign_server_catalog foreign_server_name option_name option_value
information_schema.user_mappings:
  authorization_identifier foreign_server_catalog foreign_server_name
information_schema.view_column_usage:
  view_catalog view_schema view_name table_catalog table_schema table_name column_name
information_schema.view_routine_usage:
  table_catalog table_schema table_name specific_catalog specific_schema specific_name
information_schema.view_table_usage:
  view_catalog view_schema view_name table_catalog table_schema table_name
pg_available_extension_versions:
  name version installed:bool superuser:bool trusted:bool relocatable:bool schema requires:texts comment
pg_largeobject:
  loid:oid pageno:int data
pg_policies:
  schemaname tablename policyname permissive roles:texts cmd qual with_check
pg_replication_origin:
  roident:oid roname
pg_replication_origin_status:
  local_id:oid external_id remote_lsn local_lsn
pg_shadow:
  usename usesysid:oid usecreatedb:bool usesuper:bool userepl:bool usebypassrls:bool passwd valuntil useconfig:texts
pg_stat_all_indexes pg_stat_sys_indexes:
  relid:oid indexrelid:oid schemaname relname indexrelname idx_scan:oid last_idx_scan idx_tup_read:oid
  idx_tup_fetch:oid
pg_stat_archiver:
  archived_count:oid last_archived_wal last_archived_time failed_count:oid last_failed_wal last_failed_time
  stats_reset
pg_stat_bgwriter:
  buffers_clean:oid maxwritten_clean:oid buffers_alloc:oid stats_reset
pg_stat_checkpointer:
  num_timed:oid num_requested:oid restartpoints_timed:oid restartpoints_req:oid restartpoints_done:oid write_time:real
  sync_time:real buffers_written:oid stats_reset
pg_stat_database_conflicts:
  datid:oid datname confl_tablespace:oid confl_lock:oid confl_snapshot:oid confl_bufferpin:oid confl_deadlock:oid
  confl_active_logicalslot:oid
pg_stat_gssapi:
  pid:int gss_authenticated:bool principal encrypted:bool credentials_delegated:bool
pg_stat_io:
  backend_type object context reads:oid read_time:real writes:oid write_time:real writebacks:oid writeback_time:real
  extends:oid extend_time:real op_bytes:oid hits:oid evictions:oid reuses:oid fsyncs:oid fsync_time:real stats_reset
pg_stat_progress_analyze:
  pid:int datid:oid datname relid:oid phase sample_blks_total:oid sample_blks_scanned:oid ext_stats_total:oid
  ext_stats_computed:oid child_tables_total:oid child_tables_done:oid current_child_table_relid:oid
pg_stat_progress_basebackup:
  pid:int phase backup_total:oid backup_streamed:oid tablespaces_total:oid tablespaces_streamed:oid
pg_stat_progress_cluster:
  pid:int datid:oid datname relid:oid command phase cluster_index_relid:oid heap_tuples_scanned:oid
  heap_tuples_written:oid heap_blks_total:oid heap_blks_scanned:oid index_rebuild_count:oid
pg_stat_progress_copy:
  pid:int datid:oid datname relid:oid command type bytes_processed:oid bytes_total:oid tuples_processed:oid
  tuples_excluded:oid tuples_skipped:oid
pg_stat_progress_create_index:
  pid:int datid:oid datname relid:oid index_relid:oid command phase lockers_total:oid lockers_done:oid
  current_locker_pid:oid blocks_total:oid blocks_done:oid tuples_total:oid tuples_done:oid partitions_total:oid
  partitions_done:oid
pg_stat_progress_vacuum:
  pid:int datid:oid datname relid:oid phase heap_blks_total:oid heap_blks_scanned:oid heap_blks_vacuumed:oid
  index_vacuum_count:oid max_dead_tuple_bytes:oid dead_tuple_bytes:oid num_dead_item_ids:oid indexes_total:oid
  indexes_processed:oid
pg_stat_recovery_prefetch:
  stats_reset prefetch:oid hit:oid skip_init:oid skip_new:oid skip_fpw:oid skip_rep:oid wal_distance:int
  block_distance:int io_depth:int
pg_stat_replication_slots:
  slot_name spill_txns:oid spill_count:oid spill_bytes:oid stream_txns:oid stream_count:oid stream_bytes:oid
  total_txns:oid total_bytes:oid stats_reset
pg_stat_slru:
  name blks_zeroed:oid blks_hit:oid blks_read:oid blks_written:oid blks_exists:oid flushes:oid truncates:oid
  stats_reset
pg_stat_subscription:
  subid:oid subname worker_type pid:int leader_pid:int relid:oid received_lsn last_msg_send_time last_msg_receipt_time
  latest_end_lsn latest_end_time
pg_stat_subscription_stats:
  subid:oid subname apply_error_count:oid sync_error_count:oid stats_reset
pg_stat_sys_tables:
  relid:oid schemaname relname seq_scan:oid last_seq_scan seq_tup_read:oid idx_scan:oid last_idx_scan
  idx_tup_fetch:oid n_tup_ins:oid n_tup_upd:oid n_tup_del:oid n_tup_hot_upd:oid n_tup_newpage_upd:oid n_live_tup:oid
  n_dead_tup:oid n_mod_since_analyze:oid n_ins_since_vacuum:oid last_vacuum last_autovacuum last_analyze
  last_autoanalyze vacuum_count:oid autovacuum_count:oid analyze_count:oid autoanalyze_count:oid
pg_stat_user_functions pg_stat_xact_user_functions:
  funcid:oid schemaname funcname calls:oid total_time:real self_time:real
pg_stat_wal:
  wal_records:oid wal_fpi:oid wal_bytes wal_buffers_full:oid wal_write:oid wal_sync:oid wal_write_time:real
  wal_sync_time:real stats_reset
pg_stat_wal_receiver:
  pid:int status receive_start_lsn receive_start_tli:int written_lsn flushed_lsn received_tli:int last_msg_send_time
  last_msg_receipt_time latest_end_lsn latest_end_time slot_name sender_host sender_port:int conninfo
pg_stat_xact_all_tables pg_stat_xact_sys_tables pg_stat_xact_user_tables:
  relid:oid schemaname relname seq_scan:oid seq_tup_read:oid idx_scan:oid idx_tup_fetch:oid n_tup_ins:oid
  n_tup_upd:oid n_tup_del:oid n_tup_hot_upd:oid n_tup_newpage_upd:oid
pg_statio_all_indexes pg_statio_sys_indexes pg_statio_user_indexes:
  relid:oid indexrelid:oid schemaname relname indexrelname idx_blks_read:oid idx_blks_hit:oid
pg_statio_all_sequences pg_statio_sys_sequences pg_statio_user_sequences:
  relid:oid schemaname relname blks_read:oid blks_hit:oid
pg_statio_all_tables pg_statio_sys_tables pg_statio_user_tables:
  relid:oid schemaname relname heap_blks_read:oid heap_blks_hit:oid idx_blks_read:oid idx_blks_hit:oid
  toast_blks_read:oid toast_blks_hit:oid tidx_blks_read:oid tidx_blks_hit:oid
pg_stats_ext:
  schemaname tablename statistics_schemaname statistics_name statistics_owner attnames:texts exprs:texts kinds:texts
  inherited:bool n_distinct dependencies most_common_vals:texts most_common_val_nulls:texts most_common_freqs:texts
  most_common_base_freqs:texts
pg_stats_ext_exprs:
  schemaname tablename statistics_schemaname statistics_name statistics_owner expr inherited:bool null_frac:real
  avg_width:int n_distinct:real most_common_vals:texts most_common_freqs:texts histogram_bounds:texts correlation:real
  most_common_elems:texts most_common_elem_freqs:texts elem_count_histogram:texts
pg_timezone_abbrevs:
  abbrev utc_offset is_dst:bool
"""
"""Tables of the same columns, and below them, indented, their columns."""


def _read(listed: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in listed.strip().splitlines():
        if line.startswith(" "):
            found |= {name: f"{found.get(name, '')} {line.strip()}".strip() for name in names}
        else:
            names = line.rstrip(":").split()
    return found


EMPTY_TABLES = _read(_LISTED)
"""As ``COLUMNS`` of :mod:`.catalog_columns`."""
