import java.sql.*;
import java.util.*;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("user", "reader");
        properties.put("password", arguments[1]);
        properties.put("prepareThreshold", "2");
        try (Connection connection = DriverManager.getConnection("jdbc:postgresql://" + arguments[0] + "/upriver", properties)) {
            DatabaseMetaData about = connection.getMetaData();
            try (ResultSet tables = about.getTables(null, "public", "%", null)) {
                while (tables.next()) System.out.println("table " + tables.getString("TABLE_NAME") + " " + tables.getString("TABLE_TYPE"));
            }
            try (ResultSet columns = about.getColumns(null, "public", "totals", "%")) {
                while (columns.next()) System.out.println("column " + columns.getString("COLUMN_NAME") + " " + columns.getString("TYPE_NAME") + " " + columns.getInt("DATA_TYPE"));
            }
            try (ResultSet keys = about.getIndexInfo(null, "public", "totals", false, false)) {
                while (keys.next()) System.out.println("index " + keys.getString("INDEX_NAME") + " " + keys.getString("COLUMN_NAME"));
            }
            try (ResultSet keys = about.getPrimaryKeys(null, "public", "totals")) {
                while (keys.next()) System.out.println("key " + keys.getString("COLUMN_NAME"));
            }
            try (ResultSet schemas = about.getSchemas()) {
                while (schemas.next()) System.out.println("schema " + schemas.getString(1));
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT customer, n, total FROM totals WHERE customer = ? AND n >= ?")) {
                for (String customer : List.of("ada", "bob", "ada", "bob")) {
                    statement.setString(1, customer);
                    statement.setLong(2, 1);
                    try (ResultSet rows = statement.executeQuery()) {
                        while (rows.next()) System.out.println("row " + rows.getString(1) + " " + rows.getLong(2) + " " + rows.getBigDecimal(3));
                    }
                }
            }
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.setFetchSize(1);
                int count = 0;
                try (ResultSet rows = statement.executeQuery("SELECT * FROM \"Routes\"")) {
                    while (rows.next()) { count++; System.out.println("at " + rows.getTimestamp("at").toInstant() + " " + rows.getArray("delays")); }
                }
                System.out.println("count " + count);
            }
            connection.commit();
        }
    }
}
