"""What Spark makes of a query: its analysed plan, rewritten by some of Catalyst's own rules, as one JSON text.

A small Java class walks the tree inside the JVM, in one call of py4j. Catalyst's own JSON loses what is needed: the
modes of arithmetic, casts and sums, the ids of shared expressions, the rows of VALUES, the types of computed
expressions, and the places.

Which rules are applied decides what the rest of the front end has to know. Some of Spark's would harm.
ComputeCurrentTime makes the clock a constant. ReplaceExpressions loses the classes of functions.
RewriteDistinctAggregates and DecimalAggregates spread one aggregate over several. PropagateEmptyRelation folds tables
that are empty now.

Leaves (:mod:`upriver.sql.leaves`) are written without their pickled functions, which have the app's token. Of
a user's function, the text has what PySpark has pickled, in base64.
"""

import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from upriver.spark.session import compiled_class, java_class
from upriver.sql.leaves import LEAF_PREFIX

_CATALYST = "org.apache.spark.sql.catalyst."
ROUNDS_MAX = 30
"""How often the rules are applied, if they change the plan each time."""


def _optimizer(*names: str) -> tuple[str, ...]:
    return tuple(f"{_CATALYST}optimizer.{name}" for name in names)


PULL_UP = (
    f"{_CATALYST}analysis.EliminateSubqueryAliases",
    *_optimizer("RewriteNonCorrelatedExists", "PullOutGroupingExpressions", "PullupCorrelatedPredicates"),
)
"""What names the query around leaves the plans of subqueries. These are then rewritten by all rules, each by itself,
before they become a part of the plan around. A rewriting that meets a subquery whose conditions are not pulled up would
lose them without an error."""

REWRITE = _optimizer("RewriteCorrelatedScalarSubquery", "RewriteLateralSubquery", "RewritePredicateSubquery")
"""Subqueries become joins."""

PUSH = _optimizer("PushDownPredicates", "ReorderJoin", "EliminateOuterJoin", "BooleanSimplification")
"""Conditions of WHERE become those of joins, and joins by a comma get an order in which each has an equality. The rules
are applied before subqueries are rewritten, too: as in Spark, NOT then stands at IN itself, which matters for NULL."""


class PlanWalker:
    """Reads the plans of one JVM. The first one of a JVM compiles its class."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
        (constructor,) = compiled_class(spark, "PlanWalker", _SOURCE).getConstructors()
        self._walker: Any = constructor.newInstance(gateway.new_array(java_class(spark, "java.lang.Object"), 0))

    def text_of(self, frame: DataFrame, sql: str = "") -> str:
        """The plan of a DataFrame, as JSON, after all rules, which are applied in rounds until nothing changes.

        sql: the text of the query, if it has one: only what is written there has a place. A plan is read again by
        :func:`upriver.sql.tree.read`. Raises Spark's error if a rule fails.
        """
        before = self._sessions.getActiveSession()
        self._sessions.setActiveSession(frame.sparkSession._jsparkSession)  # rules read its settings
        try:
            plan = frame._jdf.queryExecution().analyzed()
            return str(self._walker.of(plan, sql, " ".join(PULL_UP), " ".join((*PUSH, *REWRITE, *PUSH))))
        finally:
            if before.isDefined():
                self._sessions.setActiveSession(before.get())
            else:
                self._sessions.clearActiveSession()

    def statement(self, session: SparkSession, sql: str) -> str:
        """What a text is that Spark would run at once, such as CREATE TABLE, by Spark's class; empty for a query.
        Raises Spark's error if it cannot be parsed."""
        parser = session._jsparkSession.sessionState().sqlParser()
        return str(self._walker.statement(parser.parsePlan(sql)))

    def lend(self, giving: SparkSession, taking: SparkSession, name: str) -> bool:
        """Let one session call a temporary function in Python of another one; whether that has one of this name."""
        states = [session._jsparkSession.sessionState() for session in (giving, taking)]
        return bool(self._walker.lend(*states, name))


def compile_walker(spark: SparkSession) -> None:
    """Compile the class of :class:`PlanWalker` in a thread, so that the first query need not wait for that. An error of
    it is raised there."""

    def compile() -> None:
        with suppress(Exception):
            compiled_class(spark, "PlanWalker", _SOURCE)

    threading.Thread(target=compile, name="upriver-walker", daemon=True).start()


_SOURCE = r"""
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.CatalystTypeConverters;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Exists;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.InheritAnalysisRules;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SubExprUtils$;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.PivotFirst;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.CompoundPlanStatement;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.Origin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;

public class PlanWalker {
  private static final java.util.HashSet UNREAD = new java.util.HashSet(java.util.Arrays.asList(new String[] {
    "rdd", "session", "relation", "dataSource", "catalogTable", "metadata", "explicitMetadata", "hint", "stream"}));

  private final StringBuilder out = new StringBuilder();
  private final Rule[] pullingUp;
  private final Rule[] rewriting;
  private final String sql;

  /** What Python calls: an error of a rule then comes as Spark's own, which a call by reflection would hide. */
  public PlanWalker() { this("", new Rule[0], new Rule[0]); }

  private PlanWalker(String sql, Rule[] pullingUp, Rule[] rewriting) {
    this.sql = sql; this.pullingUp = pullingUp; this.rewriting = rewriting;
  }

  public static String of(Object plan, String sql, String pullingUp, String rewriting) throws Exception {
    PlanWalker walker = new PlanWalker(sql, rules(pullingUp), rules(rewriting));
    LogicalPlan given = (LogicalPlan) plan;
    walker.node(walker.prepared(readsOutward(given) ? inlined(given) : given));
    return walker.out.toString();
  }

  /** Whether a subquery with a WITH of its own also reads a WITH around, without which its own cannot be inlined. */
  private static boolean readsOutward(LogicalPlan plan) {
    scala.collection.Iterator below = plan.children().iterator();
    while (below.hasNext()) if (readsOutward((LogicalPlan) below.next())) return true;
    scala.collection.Iterator subqueries = plan.subqueries().iterator();
    while (subqueries.hasNext()) {
      LogicalPlan one = (LogicalPlan) subqueries.next();
      java.util.HashSet defined = new java.util.HashSet(), read = new java.util.HashSet();
      if (one instanceof WithCTE) queriesOfWith(one, defined, read);
      if (!defined.containsAll(read) || readsOutward(one)) return true;
    }
    return false;
  }

  private static void queriesOfWith(LogicalPlan plan, java.util.HashSet defined, java.util.HashSet read) {
    if (plan instanceof CTERelationDef) defined.add(Long.valueOf(((CTERelationDef) plan).id()));
    if (plan instanceof CTERelationRef) read.add(Long.valueOf(((CTERelationRef) plan).cteId()));
    scala.collection.Iterator below = plan.children().iterator();
    while (below.hasNext()) queriesOfWith((LogicalPlan) below.next(), defined, read);
    scala.collection.Iterator subqueries = plan.subqueries().iterator();
    while (subqueries.hasNext()) queriesOfWith((LogicalPlan) subqueries.next(), defined, read);
  }

  /** A plan without WITH: each query of one stands where it is read. */
  private static LogicalPlan inlined(LogicalPlan plan) {
    try {
      java.lang.reflect.Constructor made = InlineCTE.class.getConstructors()[0];
      Object[] flags = new Object[made.getParameterCount()];
      for (int i = 0; i < flags.length; i++) flags[i] = Boolean.valueOf(i == 0);
      return (LogicalPlan) ((Rule) made.newInstance(flags)).apply(plan);
    } catch (ReflectiveOperationException unknown) { throw new IllegalStateException(unknown); }
  }

  /** The class of a command, or of another statement that is no query, anywhere in a parsed text; or nothing. Spark
      executes the text of EXECUTE IMMEDIATE while it analyses. */
  public static String statement(Object plan) {
    if (plan instanceof Command || plan instanceof ParsedStatement || plan instanceof CompoundPlanStatement)
      return plan.getClass().getSimpleName();
    String name = plan.getClass().getSimpleName();
    if (name.indexOf("ExecuteImmediate") >= 0) return name;
    scala.collection.Iterator below = ((LogicalPlan) plan).children().iterator();
    while (below.hasNext()) {
      String found = statement(below.next());
      if (found.length() > 0) return found;
    }
    return "";
  }

  /** Lets one session call a temporary function in Python of another one; false if that has none of this name. */
  public static boolean lend(Object giving, Object taking, String name) {
    FunctionRegistry theirs = ((SessionState) giving).functionRegistry();
    scala.collection.Iterator known = theirs.listFunction().iterator();
    while (known.hasNext()) {
      FunctionIdentifier one = (FunctionIdentifier) known.next();
      scala.Option described = theirs.lookupFunction(one);
      if (!one.funcName().equalsIgnoreCase(name) || described.isEmpty()) continue;
      if (!"python_udf".equals(((ExpressionInfo) described.get()).getSource())) continue;
      scala.Function1 builder = (scala.Function1) theirs.lookupFunctionBuilder(one).get();
      ((SessionState) taking).functionRegistry().createOrReplaceTempFunction(name, builder, "python_udf");
      return true;
    }
    return false;
  }

  private static Rule[] rules(String names) throws Exception {
    String[] split = names.split(" ");
    Rule[] rules = new Rule[split.length];
    for (int i = 0; i < split.length; i++)
      rules[i] = (Rule) Class.forName(split[i] + "$").getField("MODULE$").get(null);
    return rules;
  }

  private LogicalPlan prepared(LogicalPlan plan) {
    for (int round = 0; round < ROUNDS_MAX; round++) {
      LogicalPlan before = plan;
      plan = (LogicalPlan) plan.transformAllExpressions(new Inlined());
      plan = (LogicalPlan) plan.transformAllExpressions(new Unselected());
      for (int i = 0; i < pullingUp.length; i++) plan = (LogicalPlan) pullingUp[i].apply(plan);
      plan = (LogicalPlan) plan.transformAllExpressions(new Prepared());
      for (int i = 0; i < rewriting.length; i++) plan = (LogicalPlan) rewriting[i].apply(plan);
      if (before.fastEquals(plan)) break;
    }
    return plan;
  }

  /** Subqueries with their plans prepared. */
  private class Prepared extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object part) { return part instanceof SubqueryExpression; }

    public Object applyOrElse(Object part, scala.Function1 otherwise) {
      if (!isDefinedAt(part)) return otherwise.apply(part);
      LogicalPlan plan = (LogicalPlan) ((SubqueryExpression) part).plan();
      LogicalPlan found = prepared(plan);
      return plan.fastEquals(found) ? part : ((SubqueryExpression) part).withNewPlan(found);
    }
  }

  /** Subqueries that name the query around without queries of WITH, into which no rule looks for such names. */
  private static class Inlined extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object part) {
      return part instanceof SubqueryExpression && ((SubqueryExpression) part).plan() instanceof WithCTE
        && !((SubqueryExpression) part).children().isEmpty();
    }

    public Object applyOrElse(Object part, scala.Function1 otherwise) {
      if (!isDefinedAt(part)) return otherwise.apply(part);
      return ((SubqueryExpression) part).withNewPlan(inlined((LogicalPlan) ((SubqueryExpression) part).plan()));
    }
  }

  /** EXISTS without what it selects of the query around: PullupCorrelatedPredicates leaves that in place at first, and
      at its next turn puts the condition for it in the place of all others. */
  private static class Unselected extends scala.runtime.AbstractPartialFunction {
    public boolean isDefinedAt(Object part) {
      return part instanceof Exists && ((Exists) part).plan() instanceof Project
        && plain(part).size() < listed(part).size();
    }

    public Object applyOrElse(Object part, scala.Function1 otherwise) {
      if (!isDefinedAt(part)) return otherwise.apply(part);
      Project project = (Project) ((Exists) part).plan();
      scala.collection.immutable.Seq kept = scala.jdk.javaapi.CollectionConverters.asScala(plain(part)).toSeq();
      return ((Exists) part).withNewPlan(new Project(kept, project.child()));
    }

    private static scala.collection.immutable.Seq listed(Object part) {
      return ((Project) ((Exists) part).plan()).projectList();
    }

    private static java.util.ArrayList plain(Object part) {
      java.util.ArrayList found = new java.util.ArrayList();
      scala.collection.Iterator items = listed(part).iterator();
      while (items.hasNext()) {
        Expression item = (Expression) items.next();
        if (!SubExprUtils$.MODULE$.containsOuter(item)) found.add(item);
      }
      return found;
    }
  }

  private void node(TreeNode node) {
    out.append("{\"c\":"); text(node.getClass().getSimpleName());
    if (node instanceof Expression) expression((Expression) node);
    place(node.origin());
    scala.collection.immutable.Seq children = node.children();
    if (node instanceof LogicalPlan) output((LogicalPlan) node);
    out.append(",\"f\":{");
    fields(node, children);
    out.append("}");
    if (node instanceof InheritAnalysisRules) {
      out.append(",\"ps\":"); value(((InheritAnalysisRules) node).parameters(), null);
    }
    out.append(",\"ch\":[");
    scala.collection.Iterator below = children.iterator();
    String comma = "";
    while (below.hasNext()) { out.append(comma); node((TreeNode) below.next()); comma = ","; }
    out.append("]}");
  }

  private void expression(Expression node) {
    try {
      String type = node.dataType().json();
      boolean nullable = node.nullable();
      out.append(",\"t\":").append(type);
      if (!nullable) out.append(",\"n\":false");
    } catch (Throwable untyped) {}
    try { if (!node.deterministic()) out.append(",\"d\":false"); } catch (Throwable unknown) {}
    try { String name = node.prettyName(); out.append(",\"p\":"); text(name); } catch (Throwable unnamed) {}
  }

  private void place(Origin origin) {
    boolean own = origin.sqlText().isDefined() && sql.equals(origin.sqlText().get());
    if (own && origin.startIndex().isDefined() && origin.stopIndex().isDefined())
      out.append(",\"o\":[").append(origin.startIndex().get()).append(",").append(origin.stopIndex().get())
        .append("]");
    if (origin.pysparkErrorContext().isDefined()) {
      out.append(",\"py\":"); value(origin.pysparkErrorContext().get(), null);
    }
  }

  private void output(LogicalPlan node) {
    StringBuilder made = new StringBuilder();
    try {
      scala.collection.Iterator attributes = node.output().iterator();
      while (attributes.hasNext()) {
        if (made.length() > 0) made.append(",");
        made.append(((Attribute) attributes.next()).exprId().id());
      }
    } catch (Throwable unresolved) { return; }
    out.append(",\"out\":[").append(made).append("]");
  }

  private void fields(TreeNode node, scala.collection.immutable.Seq children) {
    String comma = "";
    if (node instanceof NamedExpression) {
      out.append("\"exprId\":");
      try { out.append(((NamedExpression) node).exprId().id()); } catch (Throwable unresolved) { out.append("null"); }
      comma = ",";
    }
    if (node instanceof Attribute || node instanceof Alias) {
      String marks = ((NamedExpression) node).metadata().json();
      if (!marks.equals("{}")) out.append(comma).append("\"marks\":").append(marks);
    }
    scala.collection.Iterator names = ((scala.Product) node).productElementNames();
    scala.collection.Iterator values = ((scala.Product) node).productIterator();
    while (values.hasNext()) {
      String name = (String) names.next();
      Object value = values.next();
      if (UNREAD.contains(name) || (name.equals("func") && isLeaf(node))) continue;
      out.append(comma); text(name); out.append(":");
      comma = ",";
      if (node instanceof LocalRelation && name.equals("data")) rows((LocalRelation) node);
      else if (node instanceof Literal && name.equals("value")) constant(value, ((Literal) node).dataType());
      else if (node instanceof PivotFirst && name.equals("pivotColumnValues")) pivoted((PivotFirst) node);
      else value(value, children);
    }
  }

  private void value(Object value, scala.collection.immutable.Seq children) {
    if (value == null) { out.append("null"); return; }
    if (value instanceof TreeNode) { part((TreeNode) value, children); return; }
    if (value instanceof scala.Option) {
      scala.Option option = (scala.Option) value;
      if (option.isDefined()) value(option.get(), children); else out.append("null");
      return;
    }
    if (value instanceof ExprId) { out.append(((ExprId) value).id()); return; }
    if (value instanceof DataType) { out.append(((DataType) value).json()); return; }
    if (value instanceof CatalogTable) { text(((CatalogTable) value).identifier().unquotedString()); return; }
    if (value instanceof PythonFunction) { pickled((PythonFunction) value); return; }
    if (value instanceof scala.collection.Iterable) {
      list("", ((scala.collection.Iterable) value).iterator(), children); return;
    }
    if (isWhole(value)) { out.append(value); return; }
    if (value instanceof scala.Product && ((scala.Product) value).productArity() > 0) {
      scala.Product product = (scala.Product) value;
      list(value instanceof scala.Tuple2 ? "" : product.productPrefix(), product.productIterator(), children);
      return;
    }
    text(String.valueOf(value));
  }

  /** Nothing for a function that other data go with: broadcast variables, or its own text if that is long. */
  private void pickled(PythonFunction function) {
    if (function.broadcastVars() != null && !function.broadcastVars().isEmpty()) { text(""); return; }
    scala.collection.Iterator items = function.command().iterator();
    java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
    while (items.hasNext()) bytes.write(((Number) items.next()).intValue());
    text(java.util.Base64.getEncoder().encodeToString(bytes.toByteArray()));
  }

  private void list(String first, scala.collection.Iterator items, scala.collection.immutable.Seq children) {
    out.append("[");
    String comma = "";
    if (first.length() > 0) { text(first); comma = ","; }
    while (items.hasNext()) { out.append(comma); value(items.next(), children); comma = ","; }
    out.append("]");
  }

  private void part(TreeNode part, scala.collection.immutable.Seq children) {
    scala.collection.Iterator below = children == null ? null : children.iterator();
    for (int place = 0; below != null && below.hasNext(); place++)
      if (below.next() == part) { out.append("{\"$\":").append(place).append("}"); return; }
    node(part instanceof LogicalPlan ? prepared((LogicalPlan) part) : part);
  }

  private void pivoted(PivotFirst node) {
    scala.collection.Iterator values = node.pivotColumnValues().iterator();
    out.append("[");
    String comma = "";
    while (values.hasNext()) { out.append(comma); constant(values.next(), node.pivotColumn().dataType()); comma = ","; }
    out.append("]");
  }

  private void rows(LocalRelation relation) {
    scala.collection.Iterator rows = relation.data().iterator();
    out.append("[");
    String comma = "";
    while (rows.hasNext()) {
      InternalRow row = (InternalRow) rows.next();
      out.append(comma).append("[");
      comma = ",";
      for (int i = 0; i < relation.output().size(); i++) {
        if (i > 0) out.append(",");
        DataType type = ((Attribute) relation.output().apply(i)).dataType();
        constant(row.isNullAt(i) ? null : row.get(i, type), type);
      }
      out.append("]");
    }
    out.append("]");
  }

  private void constant(Object value, DataType type) {
    if (value == null) { out.append("null"); return; }
    if (value instanceof Decimal) { text(((Decimal) value).toJavaBigDecimal().toPlainString()); return; }
    if (isWhole(value)) { out.append(value); return; }
    if (value instanceof byte[]) { text(java.util.Base64.getEncoder().encodeToString((byte[]) value)); return; }
    if (value instanceof Double || value instanceof Float || value.getClass().getSimpleName().equals("UTF8String")) {
      text(String.valueOf(value)); return;
    }
    if (value instanceof org.apache.spark.sql.catalyst.util.ArrayData) {
      org.apache.spark.sql.catalyst.util.ArrayData array = (org.apache.spark.sql.catalyst.util.ArrayData) value;
      constants(array, ((org.apache.spark.sql.types.ArrayType) type).elementType());
      return;
    }
    if (value instanceof org.apache.spark.sql.catalyst.util.MapData) {
      org.apache.spark.sql.catalyst.util.MapData map = (org.apache.spark.sql.catalyst.util.MapData) value;
      out.append("[");
      constants(map.keyArray(), ((org.apache.spark.sql.types.MapType) type).keyType());
      out.append(",");
      constants(map.valueArray(), ((org.apache.spark.sql.types.MapType) type).valueType());
      out.append("]");
      return;
    }
    if (value instanceof InternalRow) {
      InternalRow row = (InternalRow) value;
      org.apache.spark.sql.types.StructField[] fields = ((org.apache.spark.sql.types.StructType) type).fields();
      out.append("[");
      for (int i = 0; i < fields.length; i++) {
        if (i > 0) out.append(",");
        constant(row.isNullAt(i) ? null : row.get(i, fields[i].dataType()), fields[i].dataType());
      }
      out.append("]");
      return;
    }
    value(CatalystTypeConverters.convertToScala(value, type), null);
  }

  private void constants(org.apache.spark.sql.catalyst.util.ArrayData array, DataType type) {
    out.append("[");
    for (int i = 0; i < array.numElements(); i++) {
      if (i > 0) out.append(",");
      constant(array.isNullAt(i) ? null : array.get(i, type), type);
    }
    out.append("]");
  }

  private static boolean isLeaf(TreeNode node) {
    return node instanceof PythonUDF && ((PythonUDF) node).name().startsWith("LEAF_PREFIX");
  }

  private static boolean isWhole(Object value) {
    return value instanceof Boolean || value instanceof Integer || value instanceof Long || value instanceof Short
      || value instanceof Byte;
  }

  private void text(String said) {
    out.append('"');
    for (int i = 0; i < said.length(); i++) {
      char c = said.charAt(i);
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < ' ' || (c >= 0xD800 && c < 0xE000))
        out.append(String.format("\\u%04x", new Object[] {Integer.valueOf((int) c)}));
      else out.append(c);
    }
    out.append('"');
  }
}
""".replace("ROUNDS_MAX", str(ROUNDS_MAX)).replace("LEAF_PREFIX", LEAF_PREFIX)
